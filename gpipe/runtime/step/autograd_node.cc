#include "gpipe/runtime/step/autograd_node.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "gpipe/libtorch/node.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Storage for gradients between the two nodes, with one entry per backward pass
// in progress. There may be several, from several threads.
class SetAside {
 public:
  void put(variable_list grads) {
    Entry entry;
    for (at::Tensor& grad : grads) {
      // The engine runs the gateway on the stream of the forward, and the
      // second node on the caller's stream.
      entry.complete.push_back(grad.defined() ? Event::record(grad.device())
                                              : Event());
      entry.grads.push_back(std::move(grad));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    entries_[torch::autograd::get_current_graph_task_id()] = std::move(entry);
  }

  variable_list take() {
    Entry entry;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = entries_.find(torch::autograd::get_current_graph_task_id());
      TORCH_INTERNAL_ASSERT(found != entries_.end());
      entry = std::move(found->second);
      entries_.erase(found);
    }
    for (std::size_t k = 0; k < entry.grads.size(); ++k) {
      const at::Tensor& grad = entry.grads[k];
      if (grad.defined()) entry.complete[k].wait(grad.device());
    }
    return std::move(entry.grads);
  }

 private:
  struct Entry {
    variable_list grads;
    std::vector<Event> complete;
  };
  std::mutex mutex_;
  std::map<int, Entry> entries_;
};

// The node of the outputs. See Note [Gateway].
struct Gateway : public Node {
  explicit Gateway(std::shared_ptr<SetAside> set_aside)
      : set_aside(std::move(set_aside)) {}

  variable_list apply(variable_list&& grads) override {
    set_aside->put(std::move(grads));
    return {at::empty({0})};
  }
  std::string name() const override { return "gpipe::Gateway"; }

  std::shared_ptr<SetAside> set_aside;
};

// The node that calls `backward`. See Note [Gateway].
struct Opaque : public Node {
  Opaque(edge_list&& inputs, std::shared_ptr<SetAside> set_aside,
         OpaqueBackward backward)
      : Node(std::move(inputs)),
        set_aside(std::move(set_aside)),
        backward(std::move(backward)) {}

  variable_list apply(variable_list&& /*empty*/) override {
    variable_list grads = set_aside->take();
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "a pipeline cannot be differentiated twice: "
                "create_graph = true is not supported for it");
    // Another thread's backward may release the node during the call.
    OpaqueBackward call;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      call = backward;
    }
    TORCH_CHECK(call, torch::autograd::ERR_BACKWARD_TWICE);
    std::vector<bool> wanted;
    for (std::size_t k = 0; k < num_outputs(); ++k) {
      wanted.push_back(task_should_compute_output(k));
    }
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    return call(std::move(grads), wanted, keep);
  }

  void release_variables() override {
    OpaqueBackward last;  // destroyed without the lock: it may join workers
    const std::lock_guard<std::mutex> lock(mutex_);
    last.swap(backward);
  }
  std::string name() const override { return "gpipe::Pipeline"; }

  std::shared_ptr<SetAside> set_aside;
  OpaqueBackward backward;  // guarded by mutex_
};

// The node of a tensor without backward. It has one edge, to nowhere, as
// LibTorch expects of a change in place.
struct Refused : public Node {
  explicit Refused(std::string what)
      : Node(edge_list(1)), what(std::move(what)) {}

  variable_list apply(variable_list&& /*grads*/) override {
    TORCH_CHECK(false, what);
  }
  std::string name() const override { return "gpipe::Refused"; }

  const std::string what;
};

}  // namespace

void attach_graph(std::vector<at::Tensor>& outputs, edge_list inputs,
                  OpaqueBackward backward) {
  auto set_aside = std::make_shared<SetAside>();
  const NodePtr opaque =
      make_node<Opaque>(std::move(inputs), set_aside, std::move(backward));
  const NodePtr gateway = make_node<Gateway>(set_aside);
  gateway->add_next_edge(
      Edge(opaque, opaque->add_input_metadata(at::empty({0}))));
  for (at::Tensor& output : outputs) {
    torch::autograd::create_gradient_edge(output, gateway);
  }
}

void refuse_backward(const at::Tensor& tensor, const std::string& what) {
  auto* const view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (view && view->has_bw_view()) {
    // A view gets a new graph only if its version has changed since it last got
    // one, as if the change came now. To raise the version is to refuse the
    // backward of the computation itself.
    view->set_attr_version(view->get_attr_version() - 1);
  }
  const NodePtr node = make_node<Refused>(what);
  torch::autograd::impl::rebase_history(
      tensor, Edge(node, node->add_input_metadata(tensor)));
}

namespace {

// Returns a checksum of the first, middle and last element in memory. Returns 0
// for tensors whose elements cannot be read at once.
uint64_t checksum(const at::Tensor& leaf) {
  if (!leaf.is_cpu() || leaf.layout() != at::kStrided || leaf.numel() == 0 ||
      !leaf.is_non_overlapping_and_dense()) {
    return 0;
  }
  const auto* const data = static_cast<const char*>(leaf.const_data_ptr());
  const auto size = static_cast<std::size_t>(leaf.element_size());
  const int64_t last = leaf.numel() - 1;
  uint64_t sum = 0;
  for (const int64_t k : {int64_t{0}, last / 2, last}) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, data + static_cast<std::size_t>(k) * size,
                std::min(size, sizeof(bytes)));
    sum = sum * 0x9e3779b97f4a7c15U + bytes;
  }
  return sum;
}

}  // namespace

void LeafChanges::watch(const at::Tensor& leaf) {
  leaves_.push_back({leaf, WatchedVersion(leaf), checksum(leaf)});
}

const at::Tensor* LeafChanges::without_version() const {
  for (const Watched& each : leaves_) {
    if (!each.version.is_changed() && checksum(each.leaf) != each.values) {
      return &each.leaf;
    }
  }
  return nullptr;
}

const at::Tensor* LeafChanges::with_version() const {
  for (const Watched& each : leaves_) {
    if (each.version.is_changed()) return &each.leaf;
  }
  return nullptr;
}

}  // namespace gpipe::internal
