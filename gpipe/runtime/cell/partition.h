// A partition: consecutive layers on one device.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/runtime/operators/parameter_casts.h"
#include "gpipe/runtime/recompute/called_modules.h"
#include "gpipe/skip/layout.h"

namespace gpipe::internal {

// A layer, with the data that a cell needs.
struct Layer {
  torch::nn::AnyModule module;
  std::string name;   // in the Sequential
  int64_t index = 0;  // in the Sequential
  LayerSkips skips;
};

// Consecutive layers on one device, with the data that cells need.
struct Partition {
  int64_t index = 0;
  // Whether the partition is remote (in another process). Then only `index`,
  // `imports` and `exports` have a meaning.
  bool remote = false;
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<Layer> layers;
  // The skip tensors that come from earlier partitions, and those that go to
  // later ones.
  std::vector<SkipRoute> imports, exports;

  // The modules of the layers.
  CalledModules modules;

  // The statistics of deferred BatchNorm; null if BatchNorm is not deferred.
  std::shared_ptr<NormStatistics> norms;

  // The casts of parameters that the cells of one mini-batch share.
  ParameterCasts casts;
};

// Cuts `layers` by `balance` (layers per partition, whose sum must be the
// number of layers) and sets the routes of skip tensors. Moves no parameters.
// Layers in another process have an empty `module`; a partition that starts
// with one is remote.
std::vector<Partition> partition(std::vector<Layer> layers,
                                 const std::vector<int64_t>& balance,
                                 const std::vector<c10::Device>& devices);

}  // namespace gpipe::internal
