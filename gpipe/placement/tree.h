// Registers which modules of a tree are parallelized, and prints them.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/placement/place.h"

namespace gpipe::placement {

// ---- Registers which modules are parallelized.

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

// Prints what LibTorch prints for the module. Appends "
// [processing_device=cuda:0, output_device=cuda:1]" to each parallelized module
// of the tree.
std::ostream& print_module(std::ostream& stream,
                           const torch::nn::Module& module);

// A weak reference to a module, which detects whether the module still exists:
// a new module may get the same address. Keeps nothing alive.
//
// Threads: a module may have one Witness at a time. Do not construct it while
// another thread makes a shared_ptr of the module.
class Witness {
 public:
  explicit Witness(const torch::nn::Module& module);

  // Returns false once the module is destroyed, even if its children and
  // tensors still exist. Also returns false once a module without an owner (on
  // the stack, a member, in a unique_ptr, in its constructor) has got a
  // shared_ptr.
  bool lives() const { return !life_.expired(); }

 private:
  std::weak_ptr<const void> life_;
};

}  // namespace gpipe::placement
