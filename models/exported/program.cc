#include "models/exported/program.h"

#include <algorithm>
#include <string_view>

namespace gpipe::exported {

std::string place_of(const Node& node) {
  std::string text = "node '" + node.name + "' (" + node.target + ")";
  if (!node.module.empty()) text += " of module '" + node.module + "'";
  if (!node.source.empty()) text += ", " + node.source;
  return text;
}

std::string shape_text(const Program& program, ValueId tensor) {
  const Value& value = program.values[tensor];
  std::string text =
      value.dtype ? std::string(c10::toString(*value.dtype)) + " [" : "[";
  for (std::size_t k = 0; k < value.sizes.size(); ++k) {
    text += (k ? ", " : "") + program.symbols.text(value.sizes[k]);
  }
  return text + "]";
}

const Extent* size_extent(const Program& program, const Node& node) {
  if (!node.is_size || node.reads.size() != 1 || node.results.size() != 1 ||
      node.results[0].values.size() != 1) {
    return nullptr;
  }
  const ValueId id = node.results[0].values[0];
  if (id == kNoValue || !program.values[id].extent) return nullptr;
  return &*program.values[id].extent;
}

std::string operator_name(const Node& node) {
  std::string name = node.target;
  constexpr std::string_view kPrefix = "torch.ops.";
  if (name.starts_with(kPrefix)) {
    name.erase(0, kPrefix.size());
    name.erase(std::min(name.rfind('.'), name.size()));
  }
  return name;
}

}  // namespace gpipe::exported
