// A partition: consecutive layers on one device. Partitions are built from the
// layers of a Sequential, by GPipe and by DistributedPipeline.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/runtime/operators/parameter_casts.h"
#include "gpipe/runtime/recompute/buffers.h"
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
  // Buffers that other partitions have, too. No forward may change them.
  std::vector<at::Tensor> shared_buffers;
  // modules.listings() when sharing was last checked.
  int64_t checked_listings = 0;
  // Whether no cell has run the layers in this step.
  bool unused = true;

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

// Throws c10::ValueError unless each entry of `balance` is positive and the sum
// is `layers`. The text says how to compute a balance that fits.
void check_balance(const std::vector<int64_t>& balance, std::size_t layers);

// Throws c10::ValueError if an entry of `balance` is not positive.
void check_positive(const std::vector<int64_t>& balance);

// Throws c10::ValueError if `stages_per_rank` is not positive, or if
// `partitions` is not a multiple of it.
void check_stages_per_rank(std::size_t partitions, int64_t stages_per_rank);

// Throws c10::ValueError unless `chunks` is positive.
void check_chunks(int64_t chunks);

// Returns the intra-op threads of a worker: `threads_per_partition`, or
// `otherwise` if that is 0. Throws c10::ValueError if it is negative or too
// large.
int worker_threads(int64_t threads_per_partition, int otherwise);

// Throws c10::ValueError if a layer occurs twice.
void check_layers_differ(const torch::nn::Sequential& module);

// Returns the layers of `module` with their names and declared skips.
std::vector<Layer> layers_of(torch::nn::Sequential module);

// Throws c10::ValueError if partitions in different places share a parameter or
// a buffer, since a tensor can be in one place only. Also throws if any two
// partitions share running statistics of a BatchNorm, since each forward
// changes them.
// `places`: the place of each partition, such as its device.
// `kind`: the word for a place in the error, such as "device".
void check_sharing(const std::vector<Partition>& partitions,
                   const std::vector<std::string>& places,
                   const std::string& kind);

// Lists the modules of the partitions in this process, and what partitions
// share, again if layers have other submodules, parameters or buffers than
// before. Throws as check_sharing() does, then and until they have others.
void list_again(std::vector<Partition>& partitions);

// Returns the name of the first layer that takes time along dimension 0 of the
// input and rows along dimension 1: LibTorch's RNN, GRU and LSTM without
// batch_first, and its encoders of a Transformer. Returns "" if there is none,
// or if a layer before it may transpose: one that is not LibTorch's, or is in
// another process.
std::string time_first_layer(const std::vector<Partition>& partitions);

// Makes BatchNorm layers collect running statistics per mini-batch.
void defer_norms(std::vector<Partition>& partitions);

// Returns whether any parameter or buffer of `module` is not on `device`.
bool is_off(const torch::nn::Module& module, const c10::Device& device);

// Moves layers to the device of their partition, unless they are there already.
void move_layers(std::vector<Partition>& partitions);

}  // namespace gpipe::internal
