#include "models/resnet_names.h"

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>

namespace gpipe::models {
namespace {

// Adds layers one by one, with the tensors of their type.
class Table {
 public:
  void conv(const std::string& ours, const std::string& theirs) {
    add(ours, theirs, {"weight"});
  }

  void batch_norm(const std::string& ours, const std::string& theirs) {
    add(ours, theirs,
        {"weight", "bias", "running_mean", "running_var",
         "num_batches_tracked"});
  }

  void linear(const std::string& ours, const std::string& theirs) {
    add(ours, theirs, {"weight", "bias"});
  }

  NameTable take() { return std::move(table_); }

 private:
  void add(const std::string& ours, const std::string& theirs,
           std::initializer_list<const char*> tensors) {
    for (const char* tensor : tensors) {
      table_.emplace_back(ours + "." + tensor, theirs + "." + tensor);
    }
  }

  NameTable table_;
};

// Returns the names for the bottlenecks of models/resnet.cc. The first
// one of each stage has a projection, because it changes the number of
// channels.
NameTable names(const std::array<int, 4>& blocks) {
  Table table;
  table.conv("conv1", "conv1");
  table.batch_norm("bn1", "bn1");
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string layer = "layer" + std::to_string(stage + 1);
      const std::string ours = layer + "_" + std::to_string(block) + "_";
      const std::string theirs = layer + "." + std::to_string(block) + ".";
      for (const char* number : {"1", "2", "3"}) {
        const std::string conv = std::string("conv") + number;
        const std::string bn = std::string("bn") + number;
        table.conv(ours + conv, theirs + conv);
        table.batch_norm(ours + bn, theirs + bn);
      }
      if (block > 0) continue;
      table.conv(ours + "residual.downsample.0", theirs + "downsample.0");
      table.batch_norm(ours + "residual.downsample.1", theirs + "downsample.1");
    }
  }
  table.linear("fc", "fc");
  return table.take();
}

}  // namespace

NameTable torchvision_resnet101_names() { return names({3, 4, 23, 3}); }
NameTable torchvision_resnet50_names() { return names({3, 4, 6, 3}); }

}  // namespace gpipe::models
