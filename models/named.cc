#include "models/named.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/resnet_names.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

struct Entry {
  std::string name;
  DataKind kind;
  std::vector<ModelSize> sizes;
  torch::nn::Sequential (*make)(const ModelOptions&);
  NameTable (*torchvision_names)() = nullptr;
};

const std::vector<Entry>& entries() {
  // Not destroyed, since flags are defined by it before main() and used until
  // the process ends.
  static const auto& all = *new std::vector<Entry>{
      {"resnet50",
       DataKind::kImages,
       {},
       [](const ModelOptions& o) { return resnet50(o.classes); },
       torchvision_resnet50_names},
      {"resnet101",
       DataKind::kImages,
       {},
       [](const ModelOptions& o) { return resnet101(o.classes); },
       torchvision_resnet101_names},
      {"amoebanetd",
       DataKind::kImages,
       {{"amoebanet_layers", &ModelOptions::layers, 6, 6,
         "Number of normal cells of amoebanetd, a multiple of 3."},
        {"amoebanet_filters", &ModelOptions::width, 64, 64,
         "Number of filters of amoebanetd, a multiple of 8."}},
       [](const ModelOptions& o) {
         return amoebanetd(o.classes, o.layers, o.width);
       }},
      {"unet",
       DataKind::kMasks,
       {{"unet_depth", &ModelOptions::depth, 5, 3, "Number of levels of unet."},
        {"unet_convs", &ModelOptions::convolutions, 2, 2,
         "Number of convolutions per level of unet."},
        {"unet_channels", &ModelOptions::width, 16, 16,
         "Number of channels in the first level of unet."}},
       [](const ModelOptions& o) {
         return unet(o.depth, o.convolutions, o.width);
       }},
      {"transformer",
       DataKind::kText,
       {{"transformer_layers", &ModelOptions::layers, 3, 4,
         "Number of blocks of transformer, each with attention and "
         "feed-forward layers."},
        {"transformer_width", &ModelOptions::width, 256, 128,
         "Width of the blocks of transformer. The feed-forward layers have "
         "four times this width."},
        {"transformer_heads", &ModelOptions::heads, 8, 4,
         "Number of attention heads of transformer."}},
       [](const ModelOptions& o) {
         return transformer(TransformerOptions()
                                .num_layers(o.layers)
                                .width(o.width)
                                .feed_forward(4 * o.width)
                                .heads(o.heads)
                                .vocabulary(o.vocabulary)
                                .sequence(o.sequence)
                                .dropout(o.dropout)
                                .tied_embeddings(o.tied_embeddings));
       }},
  };
  return all;
}

const Entry& entry_of(const std::string& name) {
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry;
  }
  TORCH_CHECK_VALUE(false, "--model=", name, ": must be one of ",
                    absl::StrJoin(model_names(), ", "));
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  return names;
}

std::vector<std::string> model_names(DataKind kind) {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) {
    if (entry.kind == kind) names.push_back(entry.name);
  }
  return names;
}

DataKind data_kind_of(const std::string& name) { return entry_of(name).kind; }

std::vector<ModelSize> model_sizes(const std::string& name) {
  return entry_of(name).sizes;
}

bool has_size(const std::string& name, int64_t ModelOptions::*option) {
  return std::ranges::count(entry_of(name).sizes, option, &ModelSize::option) >
         0;
}

NameTable torchvision_names(const std::string& name) {
  for (const Entry& entry : entries()) {
    if (entry.name == name && entry.torchvision_names) {
      return entry.torchvision_names();
    }
  }
  return {};
}

ModelOptions default_options(const std::string& name) {
  ModelOptions options;
  for (const ModelSize& size : entry_of(name).sizes) {
    options.*size.option = size.usual;
  }
  return options;
}

torch::nn::Sequential named_model(const std::string& name,
                                  const ModelOptions& options) {
  return entry_of(name).make(options);
}

}  // namespace gpipe::models
