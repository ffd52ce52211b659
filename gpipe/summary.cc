#include "gpipe/summary.h"

#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/libtorch/meta_scope.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/skip/layout.h"
#include "gpipe/skip/sizing_tracker.h"
#include "gpipe/skip/skippable.h"

namespace gpipe {
namespace {

using SizingTracker = internal::SizingTracker<internal::MapSkipTracker>;

TensorSummary summary_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {true, tensor.sizes().vec(), tensor.scalar_type()};
}

std::vector<std::string> names_of(const std::vector<SkipKey>& keys) {
  std::vector<std::string> names;
  for (const SkipKey& key : keys) names.push_back(key.name);
  return names;
}

// Counts elements and bytes of tensors, each tensor once.
class Counter {
 public:
  int64_t count(const std::vector<at::Tensor>& tensors, int64_t* bytes) {
    int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() ||
          !seen_.insert(tensor.unsafeGetTensorImpl()).second) {
        continue;
      }
      elements += tensor.numel();
      *bytes += internal::tensor_bytes(tensor);
    }
    return elements;
  }

 private:
  std::set<const at::TensorImpl*> seen_;
};

std::vector<LayerSummary> describe_layers(
    const torch::nn::Sequential& model,
    const std::vector<internal::LayerSkips>& skips) {
  std::vector<LayerSummary> layers;
  Counter counter;
  for (const auto& child : model->named_children()) {
    LayerSummary layer;
    layer.name = child.key();
    layer.type = module_type_name(child.value()->name());
    layer.parameters = counter.count(child.value()->parameters(), &layer.bytes);
    layer.buffers = counter.count(child.value()->buffers(), &layer.bytes);
    layer.stashes = names_of(skips[layers.size()].stash);
    layer.pops = names_of(skips[layers.size()].pop);
    layers.push_back(std::move(layer));
  }
  return layers;
}

void run_layers(torch::nn::Sequential model, internal::Value value,
                internal::SkipTracker& tracker,
                std::vector<LayerSummary>& layers) {
  const c10::NoGradGuard no_grad;
  const MetaScope meta(MetaScope::Extent::kAllTensors);
  // On the meta device no value is written.
  const internal::RegistryGuard guard(*model, /*values=*/false);
  const internal::UseSkipTracker use(tracker);
  for (at::Tensor& tensor : value.tensors()) {
    if (tensor.defined()) tensor = tensor.to(at::kMeta);
  }
  std::size_t index = 0;
  for (torch::nn::AnyModule& layer : *model) {
    value = internal::call_layer_on_meta(layer, std::move(value), index,
                                         layers[index].name);
    for (const at::Tensor& tensor : value.tensors()) {
      layers[index].outputs.push_back(summary_of(tensor));
    }
    ++index;
  }
}

std::vector<PartitionSummary> describe_partitions(
    const std::vector<LayerSummary>& layers,
    const std::vector<int64_t>& balance,
    const std::vector<c10::Device>& devices) {
  std::vector<PartitionSummary> partitions;
  int64_t next = 0;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    PartitionSummary partition;
    if (!devices.empty()) partition.device = devices[j];
    partition.first_layer = next;
    partition.layers = balance[j];
    for (; next < partition.first_layer + balance[j]; ++next) {
      partition.parameters += layers[next].parameters;
      partition.bytes += layers[next].bytes;
    }
    partitions.push_back(partition);
  }
  return partitions;
}

const std::string& layer_of(
    const SkipKey& key, const std::vector<internal::LayerSkips>& skips,
    std::vector<SkipKey> internal::LayerSkips::*declared) {
  for (const internal::LayerSkips& layer : skips) {
    for (const SkipKey& each : layer.*declared) {
      if (each == key) return layer.layer;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "no layer declares '", key.name, "'");
}

std::vector<CrossingSummary> describe_crossings(
    const Summary& summary, const std::vector<internal::LayerSkips>& skips,
    const std::vector<int64_t>& balance, const SizingTracker* tracker) {
  std::vector<CrossingSummary> crossings;
  const auto routes = internal::skip_routes(skips, balance);
  const auto partitions = static_cast<int64_t>(balance.size());
  for (int64_t to = 1; to < partitions; ++to) {
    CrossingSummary boundary{to - 1, to, std::nullopt, std::nullopt};
    if (tracker) {
      boundary.bytes = 0;
      const int64_t last = summary.partitions[to].first_layer - 1;
      for (const TensorSummary& tensor : summary.layers[last].outputs) {
        *boundary.bytes += tensor.bytes();
      }
    }
    crossings.push_back(boundary);
    for (const internal::SkipRoute& route : routes) {
      if (route.to != to) continue;
      CrossingSummary skip{route.from, to, std::nullopt, std::nullopt};
      skip.skip = {route.key.name,
                   layer_of(route.key, skips, &internal::LayerSkips::stash),
                   layer_of(route.key, skips, &internal::LayerSkips::pop)};
      if (tracker) skip.bytes = tracker->bytes(route.key);
      crossings.push_back(std::move(skip));
    }
  }
  return crossings;
}

}  // namespace

int64_t TensorSummary::bytes() const {
  if (!defined) return 0;
  return std::accumulate(sizes.begin(), sizes.end(),
                         static_cast<int64_t>(c10::elementSize(dtype)),
                         std::multiplies<>());
}

int64_t Summary::parameters() const {
  int64_t sum = 0;
  for (const LayerSummary& layer : layers) sum += layer.parameters;
  return sum;
}

int64_t Summary::bytes() const {
  int64_t sum = 0;
  for (const LayerSummary& layer : layers) sum += layer.bytes;
  return sum;
}

namespace detail {

Summary summarize(const torch::nn::Sequential& model,
                  const std::vector<int64_t>& balance,
                  const std::vector<c10::Device>& devices,
                  const internal::Value* input) {
  TORCH_CHECK_VALUE(!model.is_empty(), "summary: the model is null");
  verify_skippables(model);
  const auto layers = static_cast<int64_t>(model->size());
  const auto cut =
      balance.empty() && layers > 0 ? std::vector<int64_t>{layers} : balance;
  internal::check_balance(cut, model->size());

  const std::vector<internal::LayerSkips> skips =
      internal::declared_skips(model);
  Summary summary;
  summary.layers = describe_layers(model, skips);
  SizingTracker tracker(
      [](const at::Tensor& tensor) { return summary_of(tensor).bytes(); });
  if (input) run_layers(model, *input, tracker, summary.layers);
  summary.partitions = describe_partitions(summary.layers, cut, devices);
  summary.crossings =
      describe_crossings(summary, skips, cut, input ? &tracker : nullptr);
  return summary;
}

Summary summarize(const GPipe& pipeline, const internal::Value* input) {
  TORCH_CHECK_VALUE(!pipeline.is_empty(), "summary: the pipeline is null");
  torch::nn::Sequential model;
  const auto children = pipeline->named_children();
  std::size_t index = 0;
  for (const torch::nn::AnyModule& layer : *pipeline) {
    model->push_back(children[index++].key(), layer);
  }
  return summarize(model, pipeline->balance(), pipeline->devices(), input);
}

}  // namespace detail

namespace {

// ---- Prints a Summary as a table.

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (auto place = static_cast<int64_t>(text.size()) - 3; place > 0;
       place -= 3) {
    text.insert(place, ",");
  }
  return text;
}

std::string outputs_text(const std::vector<TensorSummary>& outputs) {
  if (outputs.size() == 1) return outputs[0].text();
  std::string text;
  for (const TensorSummary& output : outputs) {
    text += (text.empty() ? "(" : ", ") + output.text();
  }
  return text.empty() ? "" : text + ")";
}

std::string skips_text(const LayerSummary& layer) {
  std::string text;
  for (const std::string& name : layer.stashes) text += " stash " + name;
  for (const std::string& name : layer.pops) text += " pop " + name;
  return text;
}

std::vector<std::string> row_of(std::size_t index, const LayerSummary& layer) {
  return {std::to_string(index), layer.name, layer.type + skips_text(layer),
          outputs_text(layer.outputs), with_commas(layer.parameters)};
}

void print_partition(std::ostream& stream, std::size_t j,
                     const PartitionSummary& partition) {
  stream << "partition " << j;
  if (partition.device) stream << " on " << *partition.device;
  stream << ": " << partition.layers
         << (partition.layers == 1 ? " layer, " : " layers, ")
         << with_commas(partition.parameters) << " parameters, "
         << bytes_text(partition.bytes) << "\n";
}

void print_crossing(std::ostream& stream, const CrossingSummary& crossing) {
  stream << "  from " << crossing.from << " to " << crossing.to << ": ";
  if (crossing.skip) {
    stream << "skip " << crossing.skip->name << ", "
           << crossing.skip->stashed_by << " to " << crossing.skip->popped_by;
  } else {
    stream << "boundary";
  }
  if (crossing.bytes) stream << ", " << bytes_text(*crossing.bytes);
  stream << "\n";
}

}  // namespace

std::string TensorSummary::text() const {
  if (!defined) return "undefined";
  std::ostringstream text;
  text << c10::getDtypeNames(dtype).first << " " << c10::IntArrayRef(sizes);
  return text.str();
}

std::ostream& operator<<(std::ostream& stream, const Summary& summary) {
  std::vector<std::vector<std::string>> rows = {
      {"#", "layer", "type", "output", "parameters"}};
  for (const LayerSummary& layer : summary.layers) {
    rows.push_back(row_of(rows.size() - 1, layer));
  }
  const std::vector<std::string> lines = align_columns(rows, "rlllr");

  stream << lines[0] << "\n";
  const bool is_cut =
      summary.partitions.size() > 1 ||
      (!summary.partitions.empty() && summary.partitions[0].device.has_value());
  for (std::size_t j = 0; j < summary.partitions.size(); ++j) {
    const PartitionSummary& partition = summary.partitions[j];
    if (is_cut) print_partition(stream, j, partition);
    for (int64_t k = 0; k < partition.layers; ++k) {
      stream << lines[1 + partition.first_layer + k] << "\n";
    }
  }
  stream << "in all: " << summary.layers.size()
         << (summary.layers.size() == 1 ? " layer, " : " layers, ")
         << with_commas(summary.parameters()) << " parameters, "
         << bytes_text(summary.bytes()) << "\n";
  if (!summary.crossings.empty()) stream << "between partitions:\n";
  for (const CrossingSummary& crossing : summary.crossings) {
    print_crossing(stream, crossing);
  }
  return stream;
}

}  // namespace gpipe
