#include "models/resnet_names.h"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace gpipe::models {
namespace {

using Tensors = std::vector<std::string>;  // of a layer

// Returns the names for the bottlenecks of models/resnet.cc. The first
// one of each stage has a projection, because it changes the number of
// channels.
NameTable names(const std::array<int, 4>& blocks) {
  const Tensors conv = {"weight"};
  const Tensors linear = {"weight", "bias"};
  const Tensors norm = {"weight", "bias", "running_mean", "running_var",
                        "num_batches_tracked"};
  NameTable table;
  const auto add = [&](const std::string& ours, const std::string& theirs,
                       const Tensors& tensors) {
    for (const std::string& each : tensors) {
      table.emplace_back(ours + "." + each, theirs + "." + each);
    }
  };
  add("conv1", "conv1", conv);
  add("bn1", "bn1", norm);
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string layer = "layer" + std::to_string(stage + 1);
      const std::string ours = layer + "_" + std::to_string(block) + "_";
      const std::string theirs = layer + "." + std::to_string(block) + ".";
      for (const std::string number : {"1", "2", "3"}) {
        add(ours + "conv" + number, theirs + "conv" + number, conv);
        add(ours + "bn" + number, theirs + "bn" + number, norm);
      }
      if (block > 0) continue;
      add(ours + "residual.downsample.0", theirs + "downsample.0", conv);
      add(ours + "residual.downsample.1", theirs + "downsample.1", norm);
    }
  }
  add("fc", "fc", linear);
  return table;
}

}  // namespace

NameTable torchvision_resnet101_names() { return names({3, 4, 23, 3}); }
NameTable torchvision_resnet50_names() { return names({3, 4, 6, 3}); }

}  // namespace gpipe::models
