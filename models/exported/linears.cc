#include "models/exported/linears.h"

#include <algorithm>
#include <array>

namespace gpipe::exported {
namespace {

// An operator that multiplies two matrices, and the places of its factors.
struct Product {
  const char* name;
  std::size_t input, weight;
  bool transposed;  // the operator takes [inputs, outputs]
};

constexpr std::array<Product, 4> kProducts = {{{"aten.linear", 0, 1, false},
                                               {"aten.addmm", 1, 2, true},
                                               {"aten.mm", 0, 1, true},
                                               {"aten.matmul", 0, 1, true}}};

ValueId tensor_in(const Node& node, std::size_t place) {
  if (place >= node.arguments.size()) return kNoValue;
  const Argument& argument = node.arguments[place];
  return argument.kind == Argument::Kind::kValue ? argument.elements[0].value
                                                 : kNoValue;
}

bool is_parameter(const Program& program, ValueId value) {
  return value != kNoValue &&
         program.values[value].origin == Origin::kParameter;
}

}  // namespace

std::vector<LinearNode> find_linears(const Program& program) {
  std::vector<LinearNode> found;
  for (std::size_t k = 0; k < program.nodes.size(); ++k) {
    const Node& node = program.nodes[k];
    if (!node.op || node.module.empty()) continue;
    const std::string name = operator_name(node);
    const auto product =
        std::find_if(kProducts.begin(), kProducts.end(),
                     [&](const Product& each) { return name == each.name; });
    if (product == kProducts.end()) continue;
    const ValueId weight = tensor_in(node, product->weight);
    if (!is_parameter(program, weight)) continue;
    const int number = program.values[weight].weight;
    if (program.weights[number].sizes.size() != 2) continue;
    found.push_back({static_cast<int>(k), node.module, number, product->input,
                     product->transposed});
  }
  return found;
}

std::set<std::string> module_names(const Program& program) {
  std::set<std::string> names;
  for_each_node(program.nodes,
                [&](const Node& node) { names.insert(node.module); });
  names.erase("");
  return names;
}

bool is_shared(const Program& program, int weight, const std::string& module) {
  const int tied = program.weights[weight].tied_to;
  return std::any_of(
      program.nodes.begin(), program.nodes.end(), [&](const Node& node) {
        return node.module != module &&
               std::any_of(
                   node.reads.begin(), node.reads.end(), [&](ValueId each) {
                     const int read = program.values[each].weight;
                     return read >= 0 && program.weights[read].tied_to == tied;
                   });
      });
}

}  // namespace gpipe::exported
