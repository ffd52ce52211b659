// Headers and names, such as `model` and `loader`, that the C++ blocks of the
// documentation's pages use without declaring them. Most names are declared
// and never defined, because most blocks are compiled and do not run; see
// code_blocks.py.
#pragma once

#include <glog/logging.h>
#include <torch/torch.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "balancing/balancing.h"
#include "balancing/plan.h"
#include "gpipe/batch_norm.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "gpipe/placement.h"
#include "gpipe/schedule.h"
#include "gpipe/sequential.h"
#include "gpipe/simulation.h"
#include "gpipe/skip.h"
#include "gpipe/summary.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace docs {

extern torch::nn::Sequential model;
extern torch::Tensor target, sample, data, x;
// For blocks that run. From here on, all data are the same in each run.
inline torch::Tensor input = (torch::manual_seed(1), torch::randn({8, 4}));
extern std::vector<int64_t> balance;
extern std::vector<torch::Device> devices;
extern gpipe::GPipe pipeline;
extern torch::optim::SGD optimizer;

struct Batch {
  torch::Tensor data, target;
};
extern Batch batch;
extern std::vector<Batch> loader;
extern int64_t step, steps;

torch::Tensor loss(torch::Tensor output, torch::Tensor target);
extern gpipe::Schedule schedule;
extern gpipe::StepResult result;

}  // namespace docs
