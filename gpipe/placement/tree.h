// Which modules are parallelized.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/placement/place.h"

namespace gpipe::placement {

struct Devices {
  c10::Device processing;
  std::optional<c10::Device> output;
};

// The functions of gpipe/placement.h of the same names, for modules whose type
// nobody knows. One of them runs at a time.
void parallelize(torch::nn::Module& module, const Devices& devices);
void parallelize(
    torch::nn::Module& root,
    const std::vector<std::pair<std::string, Devices>>& module_devices);
void unparallelize(torch::nn::Module& module,
                   std::optional<c10::Device> common_device);
void unparallelize_all(torch::nn::Module& root,
                       std::optional<c10::Device> common_device);

// Null if it isn't parallelized.
PlacePtr place_of(const torch::nn::Module& module);

// Parameters and buffers that have lost their mark, by Tensor::set_data() or
// torch::load(), go back to their device and are marked again.
void restore(torch::nn::Module& root);

}  // namespace gpipe::placement
