#include "models/exported/dtype_constants.h"

#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>

namespace gpipe::exported {
namespace {

bool is_dtype(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

bool has_floating_dtype(const Node& node) {
  if (!node.op) return false;
  const auto& arguments = node.op->schema().arguments();
  const std::size_t count = std::min(arguments.size(), node.arguments.size());
  for (std::size_t k = 0; k < count; ++k) {
    const Argument& argument = node.arguments[k];
    if (argument.kind == Argument::Kind::kConstant &&
        argument.constant.isInt() && is_dtype(arguments[k]) &&
        c10::isFloatingType(
            static_cast<c10::ScalarType>(argument.constant.toInt()))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> dtype_constants(const Program& program) {
  std::vector<std::string> lines;
  for_each_node(program.nodes, [&](const Node& node) {
    if (has_floating_dtype(node)) lines.push_back(place_of(node));
  });
  return lines;
}

}  // namespace gpipe::exported
