#include "gpipe/placement/nodes.h"

#include <algorithm>
#include <iterator>

namespace gpipe::placement {

std::vector<Node> nodes_of(torch::nn::Module& root) {
  std::vector<Node> nodes = {{&root, "", 0, 0}};
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    for (const auto& child : nodes[k].module->named_children()) {
      if (!child.value()) continue;
      const std::string prefix = nodes[k].depth ? nodes[k].name + "." : "";
      nodes.push_back(
          {child.value().get(), prefix + child.key(), nodes[k].depth + 1, k});
    }
  }
  return nodes;
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module,
                                   bool recurse) {
  std::vector<at::Tensor> tensors;
  for (const auto& list :
       {module.parameters(recurse), module.buffers(recurse)}) {
    std::copy_if(list.begin(), list.end(), std::back_inserter(tensors),
                 [](const at::Tensor& each) { return each.defined(); });
  }
  return tensors;
}

}  // namespace gpipe::placement
