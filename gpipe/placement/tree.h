// Registers which modules are parallelized.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/placement/place.h"

namespace gpipe::placement {

// The devices of a module. `output` is nullopt if the output is not moved.
struct Devices {
  c10::Device processing;
  std::optional<c10::Device> output;
};

// These implement the functions of gpipe/placement.h with the same names, for
// modules of any type. Thread-safe: they run one at a time.
void parallelize(torch::nn::Module& module, const Devices& devices);
void parallelize(
    torch::nn::Module& root,
    const std::vector<std::pair<std::string, Devices>>& module_devices);
void unparallelize(torch::nn::Module& module,
                   std::optional<c10::Device> common_device);
void unparallelize_all(torch::nn::Module& root,
                       std::optional<c10::Device> common_device);

// Returns the place of `module`, or null if it is not parallelized.
// Thread-safe.
PlacePtr place_of(const torch::nn::Module& module);

// Moves parameters and buffers that have lost their tag back to their device
// and tags them again. Tensor::set_data() and torch::load() remove tags.
// Thread-safe.
void restore(torch::nn::Module& root);

}  // namespace gpipe::placement
