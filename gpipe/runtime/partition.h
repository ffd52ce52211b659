// A run of consecutive layers on one device.
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

#include "gpipe/runtime/norm_statistics.h"
#include "gpipe/skip/layout.h"

namespace gpipe {

// A layer with what a cell needs to know of it.
struct Layer {
  torch::nn::AnyModule module;
  std::string name;   // in the Sequential
  int64_t index = 0;  // in the Sequential
  LayerSkips skips;
};

// A buffer and a copy of it.
struct BufferValue {
  at::Tensor buffer;
  int64_t version;
  at::Tensor value;
};

// A tensor's version counts the changes in place; -1 where there is none.
int64_t version_of(const at::Tensor& tensor);

struct Partition {
  int64_t index = 0;
  // In another process: it is known where skip tensors go, and nothing else.
  bool elsewhere = false;
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<Layer> layers;
  // Skip tensors that come from earlier partitions, and that go to later ones.
  std::vector<SkipRoute> imports, exports;

  // Of the layers, themselves and what is in them.
  std::vector<std::shared_ptr<torch::nn::Module>> modules;

  // Theirs, frozen ones too.
  std::vector<at::Tensor> parameters;

  // Buffers of LibTorch's own BatchNorm and InstanceNorm, which rewrite them in
  // every forward in training, without reading them and without raising their
  // version; and the buffers of all other modules.
  std::vector<at::Tensor> norm_buffers, other_buffers;

  // What other_buffers hold, each with its version then. Values are shared with
  // those of the time before, if they live and nothing has changed.
  std::vector<BufferValue> values_of_other_buffers();

  // Of the BatchNorm layers, if what they see counts by mini-batch.
  std::shared_ptr<NormStatistics> norms;

  // The name of `parameter` in the Sequential ("3.weight"), or "" if it is
  // none of the layers'.
  std::string name_of(const at::Tensor& parameter) const;

 private:
  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  // The last values_of_other_buffers().
  std::vector<std::pair<int64_t, WeakTensor>> known_;
};

// Cuts `layers` by `balance`, whose sum must be their number, and lays out the
// skip tensors. Moves nothing. Layers that are in another process have no
// module; a partition of these is elsewhere.
std::vector<Partition> partition(std::vector<Layer> layers,
                                 const std::vector<int64_t>& balance,
                                 const std::vector<c10::Device>& devices);

}  // namespace gpipe
