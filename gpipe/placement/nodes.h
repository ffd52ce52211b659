// Lists the modules of a tree by name, and their tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <string>
#include <vector>

namespace gpipe::placement {

// A module at one position of a tree. A shared module has several nodes.
struct Node {
  torch::nn::Module* module;
  std::string name;  // "a.b.c"; "" for the root
  std::size_t depth;
  std::size_t parent;  // index of the parent; 0 for the root
};

// Returns all nodes level by level, each level in order of registration.
std::vector<Node> nodes_of(torch::nn::Module& root);

// Returns the defined parameters and buffers of `module`, and, with `recurse`,
// those of all modules in it.
std::vector<at::Tensor> tensors_of(const torch::nn::Module& module,
                                   bool recurse = true);

}  // namespace gpipe::placement
