// A pipeline that trains, in one process or over several: the same for whoever
// uses it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "trainer/cut.h"
#include "trainer/options.h"
#include "trainer/precision.h"
#include "trainer/task.h"

namespace gpipe::trainer {

using LossOf = std::function<at::Tensor(const at::Tensor& output,
                                        const at::Tensor& target)>;

// Of several processes, all make the same calls at the same time.
// Threads: one at a time.
class Engine {
 public:
  virtual ~Engine() = default;

  // Of the processes: which one this is, and of the copies of the pipeline.
  virtual int rank() const { return 0; }
  virtual int ranks() const { return 1; }
  virtual int replica() const { return 0; }
  virtual int replicas() const { return 1; }
  // Whether samples are looked at here; anything may stand for others.
  virtual bool takes_samples() const { return true; }

  // The layers that are here, under their names in the whole model.
  virtual torch::nn::Module& module() = 0;
  virtual const std::vector<int64_t>& balance() const = 0;
  // Where inputs go.
  virtual c10::Device device() const = 0;

  // One mini-batch, whose gradients are added to those that are there.
  // See GPipeImpl::train_step.
  virtual StepResult train(const Sample& sample, const LossOf& loss,
                           const TrainOptions& options) = 0;

  // What the model returns, without gradients, on the CPU; none where the last
  // stage is not.
  virtual std::optional<at::Tensor> forward(const at::Tensor& input) = 0;

  // Where this process's own exception in the last train() came from.
  virtual std::optional<Failure> last_failure() const = 0;

  // Scales the gradients of all parameters, as one vector, to a norm of at most
  // `max_norm`; returns what it was.
  virtual double clip(double max_norm) = 0;

  // Whether it is true in any process.
  virtual bool any(bool here) { return here; }

  // What each process gives, by rank.
  virtual std::vector<std::string> all_gather(const std::string& mine) {
    return {mine};
  }
};

// What make_engine() needs beside the options.
struct EngineParts {
  torch::nn::Sequential model;
  int64_t batch;  // rows of a mini-batch, of all replicas together
  // So many rows of input, on the CPU.
  std::function<at::Tensor(int64_t rows)> input;
  std::vector<int64_t> balance_before;  // see CutSources
  Precision precision;                  // in which layers are timed
};

// Where the processes meet, before there is a pipeline.
class Meeting {
 public:
  virtual ~Meeting() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;

  // Once. `parts` may be moved from.
  virtual std::unique_ptr<Engine> make_engine(const EngineOptions& options,
                                              EngineParts parts) = 0;
};

}  // namespace gpipe::trainer
