// A run of consecutive layers on one device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <memory>
#include <string>
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

struct Partition {
  int64_t index = 0;
  // In another process: it is known where skip tensors go, and nothing else.
  bool elsewhere = false;
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<Layer> layers;
  // Skip tensors that come from earlier partitions, and that go to later ones.
  std::vector<SkipRoute> imports, exports;

  // Buffers of LibTorch's own BatchNorm and InstanceNorm, which rewrite them in
  // every forward in training, without reading them and without raising their
  // version; and the buffers of all other modules.
  std::vector<at::Tensor> norm_buffers, other_buffers;

  // Of the BatchNorm layers, if what they see counts by mini-batch.
  std::shared_ptr<NormStatistics> norms;

  // The name of `parameter` in the Sequential ("3.weight"), or "" if it is
  // none of the layers'.
  std::string name_of(const at::Tensor& parameter) const;
};

// Cuts `layers` by `balance`, whose sum must be their number, and lays out the
// skip tensors. Moves nothing. Layers that are in another process have no
// module; a partition of these is elsewhere.
std::vector<Partition> partition(std::vector<Layer> layers,
                                 const std::vector<int64_t>& balance,
                                 const std::vector<c10::Device>& devices);

}  // namespace gpipe
