#include "gpipe/skip/verify.h"

#include <string>
#include <utility>

#include "gpipe/skip/keeps_devices.h"
#include "gpipe/skip/skippable.h"

namespace gpipe {
namespace {

// Adds the skip tensors of `module` and its submodules to `skips`, except those
// of nested pipelines, which move their own skip tensors.
void add_skips(const torch::nn::Module& module, internal::LayerSkips& skips) {
  if (dynamic_cast<const internal::KeepsDevices*>(&module)) return;
  if (const auto* skippable = dynamic_cast<const Skippable*>(&module)) {
    for (SkipKey& key : skippable->stashable()) {
      skips.stash.push_back(std::move(key));
    }
    for (SkipKey& key : skippable->poppable()) {
      skips.pop.push_back(std::move(key));
    }
  }
  for (const auto& child : module.children()) add_skips(*child, skips);
}

}  // namespace

std::vector<internal::LayerSkips> internal::declared_skips(
    const torch::nn::Sequential& module) {
  std::vector<internal::LayerSkips> layers;
  for (const auto& child : module->named_children()) {
    internal::LayerSkips skips;
    skips.layer = child.key();
    add_skips(*child.value(), skips);
    layers.push_back(std::move(skips));
  }
  return layers;
}

void verify_skippables(torch::nn::Sequential module) {
  internal::verify_skips(internal::declared_skips(module));
}

void internal::verify_skips(const std::vector<internal::LayerSkips>& layers) {
  const auto problems = internal::skip_mismatches(layers);
  if (problems.empty()) return;
  std::string text = "one or more pairs of stash and pop do not match:\n";
  for (const std::string& problem : problems) text += "\n* " + problem;
  TORCH_CHECK_TYPE(false, text);
}

}  // namespace gpipe
