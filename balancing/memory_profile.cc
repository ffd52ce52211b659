#include "balancing/memory_profile.h"

#include <ATen/Functions.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "balancing/profile/sandbox.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/libtorch/meta_scope.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/skip/layout.h"
#include "gpipe/skip/sizing_tracker.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::balancing {
namespace {

// ---- The release of a layer's graph

using torch::autograd::Edge;
using torch::autograd::Node;
using NodeOwner = decltype(Edge::function);
using internal::tensor_bytes;
using SizingTracker = internal::SizingTracker<ProfileTracker>;

// Returns the name of an operator. LibTorch wraps the type of a
// torch::autograd::Function in that of its node.
std::string operator_name(const Node& node) {
  constexpr std::string_view kWrapper = "torch::autograd::CppNode<";
  std::string name = node.name();
  const std::size_t begin = name.find(kWrapper);
  if (begin != std::string::npos && name.back() == '>') {
    name = name.substr(begin + kWrapper.size());
    name.pop_back();
  }
  return name;
}

std::vector<NodeOwner> nodes_of(const std::vector<Edge>& outputs) {
  std::vector<NodeOwner> nodes;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const Edge& edge) {
    Node* const node = edge.function.get();
    if (node && seen.insert(node).second) nodes.push_back(edge.function);
  };
  for (const Edge& edge : outputs) visit(edge);
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    // visit() may move the list.
    const Node* const node = nodes[k].get();
    for (const Edge& edge : node->next_edges()) visit(edge);
  }
  return nodes;
}

// Releases the graph whose outputs are `outputs`, an operator before those
// whose results it takes. Calls `released` after each node, with the operator's
// name: that of its autograd node ("AddmmBackward0"), or the type of a
// torch::autograd::Function.
//
// A tensor that several nodes keep is so freed by the first operator that kept
// it in the forward. `outputs` must be the only owners of the graph.
//
// Complexity: O(n log n) for n nodes. Threads: any thread, while no other
// thread uses the graph.
void release_graph(std::vector<Edge> outputs,
                   const std::function<void(const std::string&)>& released) {
  std::vector<NodeOwner> nodes = nodes_of(outputs);
  // A node has a larger number than all nodes to which its gradients go.
  std::ranges::sort(nodes, {}, [](const NodeOwner& node) {
    return std::make_tuple(node->topological_nr(), node->sequence_nr());
  });
  outputs.clear();
  while (!nodes.empty()) {
    const std::string name = operator_name(*nodes.back());
    nodes.pop_back();
    released(name);
  }
}

// ---- The profile

int64_t bytes_of(const internal::Value& value) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : value.tensors())
    bytes += tensor_bytes(tensor);
  return bytes;
}

// The memory of the tensors that pass from layer to layer. It is kept until the
// end, so that an address identifies one storage.
class Passing {
 public:
  // Leaves the tensor's storage out of all that follows: that of a weight or a
  // buffer, which a layer has anyway. The tensor must live as long as layers
  // run.
  void leave_out(const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) {
      seen_.insert(tensor.storage().unsafeGetStorageImpl());
    }
  }

  // Adds the tensor's storage. Returns its bytes, or 0 if it was added before.
  int64_t add(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.storage().nbytes() == 0) return 0;
    const void* const address = tensor.storage().unsafeGetStorageImpl();
    if (!seen_.insert(address).second) return 0;
    all_.push_back({tensor.storage(), {}, {}});
    return bytes(all_.size() - 1);
  }

  // Returns the use count of each storage, in the order of add().
  std::vector<std::size_t> uses() const {
    std::vector<std::size_t> uses;
    uses.reserve(all_.size());
    for (const Entry& each : all_) uses.push_back(each.storage.use_count());
    return uses;
  }

  int64_t bytes(std::size_t index) const {
    return static_cast<int64_t>(all_[index].storage.nbytes());
  }
  void save(std::size_t index, int64_t layer) {
    all_[index].savers.push_back(layer);
  }
  void save_for_weights(std::size_t index, int64_t layer) {
    all_[index].weight_savers.push_back(layer);
  }
  void append_to(MemoryProfile& profile) const {
    const auto add = [](std::vector<SavedTensor>& all, int64_t bytes,
                        const std::vector<int64_t>& savers) {
      if (!savers.empty()) all.push_back({bytes, savers});
    };
    for (std::size_t k = 0; k < all_.size(); ++k) {
      add(profile.saved, bytes(k), all_[k].savers);
      add(profile.saved_for_weights, bytes(k), all_[k].weight_savers);
    }
  }

 private:
  struct Entry {
    c10::Storage storage;
    std::vector<int64_t> savers, weight_savers;
  };
  std::unordered_set<const void*> seen_;
  std::vector<Entry> all_;
};

class MemoryProfiler {
 public:
  MemoryProfiler(const torch::nn::Sequential& module,
                 const internal::Value& input) {
    const std::vector<internal::LayerSkips> skips =
        internal::declared_skips(module);
    profile_.input_bytes = bytes_of(input);
    count_parameters(*module);
    std::vector<Sandbox> sandboxes = sandboxes_of(module, /*values=*/false);

    for (Sandbox& each : sandboxes) {
      const torch::nn::Module& layer = *each.layer().ptr();
      for (const at::Tensor& own : layer.parameters()) passing_.leave_out(own);
      for (const at::Tensor& own : layer.buffers()) passing_.leave_out(own);
    }

    std::map<SkipKey, int64_t> stashed_by;
    const internal::UseSkipTracker use_tracker(tracker_);
    boundary_.kind = input.kind();
    for (const at::Tensor& tensor : input.tensors()) {
      boundary_.inputs.push_back(internal::without_graph(
          tensor.defined() ? tensor.to(at::kMeta) : tensor));
      passing_.add(boundary_.inputs.back().tensor);
    }
    const std::vector<std::string> names = module->named_children().keys();
    for (std::size_t k = 0; k < sandboxes.size(); ++k) {
      run(static_cast<int64_t>(k), names[k], sandboxes[k].layer());
      for (const SkipKey& key : skips[k].stash) {
        stashed_by[key] = static_cast<int64_t>(k);
      }
      for (const SkipKey& key : skips[k].pop) {
        profile_.skips.push_back(
            {stashed_by.at(key), static_cast<int64_t>(k), tracker_.bytes(key)});
      }
    }
    passing_.append_to(profile_);
  }

  MemoryProfile take() { return std::move(profile_); }

 private:
  void count_parameters(const torch::nn::Module& module) {
    std::set<const at::TensorImpl*> seen;
    const auto is_new = [&](const at::Tensor& tensor) {
      return tensor.defined() &&
             seen.insert(tensor.unsafeGetTensorImpl()).second;
    };
    for (const auto& layer : module.children()) {
      LayerMemory memory;
      for (const at::Tensor& tensor : layer->parameters()) {
        if (!is_new(tensor)) continue;
        memory.parameter_bytes += tensor_bytes(tensor);
        if (tensor.requires_grad())
          memory.trained_bytes += tensor_bytes(tensor);
      }
      for (const at::Tensor& tensor : layer->buffers()) {
        if (is_new(tensor)) memory.buffer_bytes += tensor_bytes(tensor);
      }
      profile_.layers.push_back(memory);
    }
  }

  void run(int64_t index, const std::string& name,
           torch::nn::AnyModule& layer) {
    const std::optional<int64_t> left = left_for_weights(index, name, layer);
    LayerMemory& memory = profile_.layers[index];
    const MetaLedger ledger;
    std::vector<Edge> graph;
    {
      const internal::Value output = internal::call_layer_on_meta(
          layer, boundary_.graph_input(), index, name);
      memory.forward_peak_bytes = ledger.peak_bytes();
      memory.output_bytes = bytes_of(output);
      boundary_ = without_graph(output);
      for (const at::Tensor& tensor : tracker_.outputs(output)) {
        graph.push_back(internal::gradient_edge(tensor));
        memory.kept_bytes += passing_.add(tensor);
      }
      tracker_.end_layer();
    }
    const int64_t internal =
        release(std::move(graph), ledger, index, /*for_weights=*/!left);
    memory.kept_bytes += internal;
    if (internal > 0) profile_.saved.push_back({internal, {index}});
    const int64_t for_weights = left.value_or(internal + memory.output_bytes);
    if (for_weights > 0) {
      profile_.saved_for_weights.push_back({for_weights, {index}});
    }
  }

  // Runs the next layer and the input part of its backward. Records which of
  // the tensors that pass between layers the weight part needs. Returns the
  // bytes of all else that is held for it; nothing if the backward cannot run.
  std::optional<int64_t> left_for_weights(int64_t index,
                                          const std::string& name,
                                          torch::nn::AnyModule& layer) {
    const std::vector<std::size_t> before = passing_.uses();
    const MetaLedger ledger;
    internal::Subgraph graph;
    std::vector<at::Tensor> grads;
    try {
      {
        SizingTracker tracker = tracker_;
        const internal::UseSkipTracker use_tracker(tracker);
        internal::Value input = boundary_.graph_input();
        std::vector<Edge> edges = internal::gradient_edges(input.tensors());
        const uint64_t begin = at::sequence_number::peek();
        const internal::Value output =
            internal::call_layer_on_meta(layer, std::move(input), index, name);
        const std::vector<at::Tensor> outputs = tracker.outputs(output);
        edges.insert(edges.end(), tracker.popped().begin(),
                     tracker.popped().end());
        for (const at::Tensor& each : outputs) {
          grads.push_back(each.defined() && each.requires_grad()
                              ? at::empty_like(each.detach())
                              : at::Tensor());
        }
        graph = internal::Subgraph(begin, std::move(edges), outputs);
      }
      if (graph.leaves().empty()) return 0;
      graph.backward_input(std::move(grads));
    } catch (const std::exception&) {
      // The layer itself throws again when it is measured.
      return std::nullopt;
    }
    const std::vector<std::size_t> after = passing_.uses();
    for (std::size_t k = 0; k < before.size(); ++k) {
      if (after[k] > before[k]) passing_.save_for_weights(k, index);
    }
    return ledger.live_bytes();
  }

  // Releases the graph of layer `index`. The layer has kept for backward
  // whatever is freed with it. Records who keeps the tensors that pass between
  // layers, and what each operator keeps. Returns the bytes of all other
  // tensors. `for_weights`: whether the weight part needs all that is kept.
  int64_t release(std::vector<Edge> graph, const MetaLedger& ledger,
                  int64_t index, bool for_weights) {
    std::vector<std::size_t> uses = passing_.uses();
    const int64_t begin = ledger.live_bytes();
    int64_t live = begin;
    std::vector<OperatorMemory> released;
    std::map<std::size_t, std::size_t> keepers;  // of passing tensors
    release_graph(std::move(graph), [&](const std::string& name) {
      released.push_back({name, live - ledger.live_bytes()});
      live = ledger.live_bytes();
      std::vector<std::size_t> after = passing_.uses();
      for (std::size_t k = 0; k < uses.size(); ++k) {
        if (uses[k] > after[k]) keepers[k] = released.size() - 1;
      }
      uses = std::move(after);
    });
    for (const auto& [k, keeper] : keepers) {
      passing_.save(k, index);
      if (for_weights) passing_.save_for_weights(k, index);
      released[keeper].bytes += passing_.bytes(k);
    }
    std::reverse(released.begin(), released.end());
    profile_.layers[index].operators = by_name(released);
    return begin - live;
  }

  static std::vector<OperatorMemory> by_name(
      const std::vector<OperatorMemory>& all) {
    std::vector<OperatorMemory> result;
    for (const OperatorMemory& each : all) {
      if (each.bytes == 0) continue;
      const auto same = std::ranges::find_if(
          result,
          [&](const OperatorMemory& one) { return one.name == each.name; });
      if (same == result.end()) {
        result.push_back(each);
      } else {
        same->bytes += each.bytes;
      }
    }
    return result;
  }

  MemoryProfile profile_;
  SizingTracker tracker_{&tensor_bytes};
  Boundary boundary_;
  Passing passing_;
};

}  // namespace

namespace detail {

internal::Value first_microbatch(const internal::Value& input, int64_t chunks,
                                 const std::vector<int64_t>& unsplit) {
  internal::check_unsplit(unsplit);
  for (const at::Tensor& tensor : input.tensors()) {
    if (!tensor.defined()) continue;
    internal::check_input(input, tensor.device(), unsplit);
    break;
  }
  const int64_t rows = internal::rows_of(input, unsplit);
  return internal::scatter(input, chunk_rows(rows, chunks), unsplit).front();
}

MemoryProfile profile_memory(const torch::nn::Sequential& module,
                             const internal::Value& input) {
  TORCH_CHECK_VALUE(!module.is_empty(), "profile_memory: the model is null");
  verify_skippables(module);
  // Training records a graph, even if the caller is in inference mode.
  const c10::InferenceMode normal_mode(false);
  const MetaScope meta(MetaScope::Extent::kAllTensors);
  return MemoryProfiler(module, input).take();
}

}  // namespace detail
}  // namespace gpipe::balancing
