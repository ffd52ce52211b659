#include "gpipe/summary.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "gpipe/base/text/type_name.h"
#include "gpipe/meta/scope.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/skip/layout.h"
#include "gpipe/skip/tracker.h"
#include "gpipe/skip/verify.h"

namespace gpipe {
namespace {

TensorSummary summary_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {true, tensor.sizes().vec(), tensor.scalar_type()};
}

// Hands skip tensors from stash to pop, and keeps their sizes afterwards.
class SizingTracker : public internal::SkipTracker {
 public:
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override {
    bytes_[key] = tensor ? summary_of(*tensor).bytes() : 0;
    saved_[key] = std::move(tensor);
  }
  std::optional<at::Tensor> load(const SkipKey& key) override {
    const auto found = saved_.find(key);
    if (found == saved_.end()) throw_not_stashed(key);
    auto tensor = std::move(found->second);
    saved_.erase(found);
    return tensor;
  }

  int64_t bytes(const SkipKey& key) const { return bytes_.at(key); }

 private:
  std::map<SkipKey, std::optional<at::Tensor>> saved_;
  std::map<SkipKey, int64_t> bytes_;
};

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
      *bytes += static_cast<int64_t>(tensor.nbytes());
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

void check_balance(const std::vector<int64_t>& balance, int64_t layers) {
  int64_t sum = 0;
  for (const int64_t each : balance) {
    TORCH_CHECK_VALUE(each > 0,
                      "summary: all numbers of a balance must be "
                      "positive (balance: ",
                      c10::IntArrayRef(balance), ")");
    sum += each;
  }
  TORCH_CHECK_VALUE(sum == layers, "summary: the model has ", layers,
                    " layers, but the sum of the balance is ", sum,
                    " (balance: ", c10::IntArrayRef(balance), ")");
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
  check_balance(cut, layers);

  const std::vector<internal::LayerSkips> skips =
      internal::declared_skips(model);
  Summary summary;
  summary.layers = describe_layers(model, skips);
  SizingTracker tracker;
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
}  // namespace gpipe
