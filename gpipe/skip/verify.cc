#include "gpipe/skip/verify.h"

#include <string>

#include "gpipe/skip/skippable.h"

namespace gpipe {

std::vector<LayerSkips> declared_skips(const torch::nn::Sequential& module) {
  std::vector<LayerSkips> layers;
  for (const auto& child : module->named_children()) {
    LayerSkips skips;
    skips.layer = child.key();
    for (const auto& inner : child.value()->modules()) {
      if (auto* skippable = dynamic_cast<Skippable*>(inner.get())) {
        for (SkipKey& key : skippable->stashable()) {
          skips.stash.push_back(std::move(key));
        }
        for (SkipKey& key : skippable->poppable()) {
          skips.pop.push_back(std::move(key));
        }
      }
    }
    layers.push_back(std::move(skips));
  }
  return layers;
}

void verify_skippables(torch::nn::Sequential module) {
  verify_skips(declared_skips(module));
}

void verify_skips(const std::vector<LayerSkips>& layers) {
  const auto problems = skip_mismatches(layers);
  if (problems.empty()) return;
  std::string text = "one or more pairs of stash and pop do not match:\n";
  for (const std::string& problem : problems) text += "\n* " + problem;
  TORCH_CHECK_TYPE(false, text);
}

}  // namespace gpipe
