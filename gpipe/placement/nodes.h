// The modules of a tree by name.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <string>
#include <vector>

namespace gpipe::placement {

// A module of a tree, as often as it is in it.
struct Node {
  torch::nn::Module* module;
  std::string name;  // "a.b.c"; "" for the root
  std::size_t depth;
  std::size_t parent;  // index; its own for the root
};

// Level by level, each in the order in which the modules were registered.
std::vector<Node> nodes_of(torch::nn::Module& root);

}  // namespace gpipe::placement
