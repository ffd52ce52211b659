// A partition: consecutive layers on one device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/runtime/operators/parameter_casts.h"
#include "gpipe/skip/layout.h"

namespace gpipe::internal {

// A layer, with the data that a cell needs.
struct Layer {
  torch::nn::AnyModule module;
  std::string name;   // in the Sequential
  int64_t index = 0;  // in the Sequential
  LayerSkips skips;
};

// A buffer, and a copy of its value at a version.
struct BufferValue {
  at::Tensor buffer;
  int64_t version;
  at::Tensor value;
};

// Returns the version of `tensor`, which counts in-place changes; -1 if it has
// none (undefined and inference tensors).
int64_t version_of(const at::Tensor& tensor);

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

  // The modules of the layers and all their submodules.
  std::vector<std::shared_ptr<torch::nn::Module>> modules;

  // The parameters of `modules`, including frozen ones.
  std::vector<at::Tensor> parameters;

  // `norm_buffers`: buffers of LibTorch's BatchNorm and InstanceNorm, and
  // others that a layer has passed to the operator of BatchNorm as running
  // statistics. In training, a forward changes them without raising their
  // version. `other_buffers`: all other buffers.
  std::vector<at::Tensor> norm_buffers, other_buffers;

  // Moves the buffers among `statistics` from `other_buffers` to
  // `norm_buffers`. `statistics`: what operators have changed as such.
  void add_norm_buffers(const std::vector<at::Tensor>& statistics);

  // Returns copies of `other_buffers` with their present versions. A buffer
  // that has not changed shares the copy of the previous call, if that copy
  // still lives.
  std::vector<BufferValue> values_of_other_buffers();

  // The statistics of deferred BatchNorm; null if BatchNorm is not deferred.
  std::shared_ptr<NormStatistics> norms;

  // The casts of `parameters` that the cells of one mini-batch share.
  ParameterCasts casts;

  // Returns the name of `parameter` in the Sequential ("3.weight"), or "" if no
  // layer has it.
  std::string name_of(const at::Tensor& parameter) const;

 private:
  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  // The versions and copies of the last values_of_other_buffers(), by place in
  // `other_buffers`.
  std::vector<std::pair<int64_t, WeakTensor>> known_;
};

// Cuts `layers` by `balance` (layers per partition, whose sum must be the
// number of layers) and sets the routes of skip tensors. Moves no parameters.
// Layers in another process have an empty `module`; a partition that starts
// with one is remote.
std::vector<Partition> partition(std::vector<Layer> layers,
                                 const std::vector<int64_t>& balance,
                                 const std::vector<c10::Device>& devices);

}  // namespace gpipe::internal
