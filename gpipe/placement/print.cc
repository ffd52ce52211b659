#include "gpipe/placement/print.h"

#include <ostream>
#include <string>

#include "gpipe/placement/place.h"
#include "gpipe/placement/tree.h"

namespace gpipe::placement {
namespace {

using torch::nn::Module;

bool is_placed(const Module& module) {
  if (place_of(module)) return true;
  for (const auto& child : module.children()) {
    if (child && is_placed(*child)) return true;
  }
  return false;
}

// Prints children in the same layout as LibTorch's own function, which is
// private.
void print(std::ostream& stream, const Module& module,
           const std::string& indentation) {
  module.pretty_print(stream);
  if (const PlacePtr place = place_of(module)) {
    stream << " [processing_device=" << place->processing;
    if (place->output) stream << ", output_device=" << *place->output;
    stream << "]";
  }
  const auto children = module.named_children();
  if (children.is_empty()) return;
  stream << "(\n";
  for (const auto& child : children) {
    stream << indentation << "  (" << child.key() << "): ";
    if (child.value()) print(stream, *child.value(), indentation + "  ");
    stream << "\n";
  }
  stream << indentation << ")";
}

}  // namespace

std::ostream& print_module(std::ostream& stream, const Module& module) {
  // This is LibTorch's operator, since placement.h is not included here.
  if (!is_placed(module)) return stream << module;
  print(stream, module, "");
  return stream;
}

}  // namespace gpipe::placement
