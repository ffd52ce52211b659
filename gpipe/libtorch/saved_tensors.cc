#include "gpipe/libtorch/saved_tensors.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <typeinfo>

#include "gpipe/libtorch/debug_info.h"
#include "gpipe/libtorch/node.h"

namespace gpipe::internal {
namespace {

thread_local SavedTensorHooks* current_hooks = nullptr;
// The node of a backward inside which the scope of `current_hooks` was made, or
// null. Not owned; only compared.
thread_local const void* current_node = nullptr;

thread_local GradsOfNow* current_grads = nullptr;

// The backwards that between_additions() counts. Never destroyed, because a
// worker may run a backward while the process exits.
struct Additions {
  static Additions& get() {
    static auto* const all = new Additions();
    return *all;
  }
  std::mutex mutex;
  int64_t running = 0, ended = 0;
};

// One of them, while in scope.
class Addition {
 public:
  Addition() {
    const std::lock_guard<std::mutex> lock(Additions::get().mutex);
    ++Additions::get().running;
  }
  ~Addition() {
    const std::lock_guard<std::mutex> lock(Additions::get().mutex);
    --Additions::get().running;
    ++Additions::get().ended;
  }
  Addition(const Addition&) = delete;
  Addition& operator=(const Addition&) = delete;
};

const void* node_at_work() { return torch::autograd::get_current_node().get(); }

// A node that does nothing.
struct Nothing : public torch::autograd::Node {
  // The engine runs nodes of higher numbers first.
  Nothing() : Node(/*sequence_nr=*/0) {}
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& /*grads*/) override {
    return {};
  }
  std::string name() const override { return "gpipe::Nothing"; }
};

// LibTorch's engine, which also serves the scopes of the calling thread. It is
// never destroyed, because a worker may run a backward while the process exits.
class HookEngine : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static auto* const engine = new HookEngine();
    return *engine;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    const bool serves = current_hooks && node_at_work() == current_node;
    return serves ? current_hooks->next() : nullptr;
  }

  torch::autograd::variable_list execute(
      const torch::autograd::edge_list& roots,
      const torch::autograd::variable_list& inputs, bool keep_graph,
      bool create_graph, bool accumulate_grad,
      const torch::autograd::edge_list& outputs) override {
    if (accumulate_grad && current_grads) current_grads->set_aside(roots);
    std::optional<Addition> addition;
    if (accumulate_grad && !c10::ThreadLocalDebugInfo::get(kPhaseSlot)) {
      addition.emplace();
    }
    return Engine::execute(roots, inputs, keep_graph, create_graph,
                           accumulate_grad, outputs);
  }

  // LibTorch returns the error of a node of the calling thread while a thread
  // of a device may still run a node of the same backward, which uses what the
  // caller has lent it. Here no thread does when the function returns.
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, NodePtr root,
      torch::autograd::InputBuffer&& inputs) override {
    auto result = Engine::execute_with_graph_task(task, std::move(root),
                                                  std::move(inputs));
    // A backward within another one shares the queue of this thread with it.
    if (task->reentrant_depth_ == 0 && result->hasError()) {
      while (task->outstanding_tasks_ > 0) drop_queue();
    }
    return result;
  }

 private:
  HookEngine() = default;

  // Drops the nodes of failed backwards that wait for this thread.
  void drop_queue() {
    const at::Tensor start = at::empty({0});
    const NodePtr last = make_node<Nothing>();
    last->add_input_metadata(start);
    Engine::execute({torch::autograd::Edge(last, 0)}, {start},
                    /*keep_graph=*/false, /*create_graph=*/false,
                    /*accumulate_grad=*/true, {});
    std::this_thread::yield();
  }
};

// Before main(), so that no backward runs in another engine. An engine that is
// already there, such as that of LibTorch's Python bindings, stays.
[[maybe_unused]] const bool installed = [] {
  using torch::autograd::Engine;
  const Engine& present = Engine::get_default_engine();
  if (typeid(present) != typeid(Engine)) return false;
  torch::autograd::set_default_engine_stub(&HookEngine::instance);
  return true;
}();

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorHooks* source)
    : outer_(current_hooks), outer_node_(current_node) {
  TORCH_CHECK(
      is_available(),
      "another autograd engine runs in this program than gpipe's, so that "
      "tensors that autograd saves cannot be recomputed or copied to the "
      "host; do not call set_default_engine_stub(), do not load LibTorch's "
      "Python bindings into this program, and load gpipe once");
  current_hooks = source;
  current_node = node_at_work();
}

SavedTensorScope::~SavedTensorScope() {
  current_hooks = outer_;
  current_node = outer_node_;
}

bool SavedTensorScope::is_available() {
  return &torch::autograd::Engine::get_default_engine() ==
         &HookEngine::instance();
}

SavedTensorHooks* SavedTensorScope::current() { return current_hooks; }

GradsOfNow::GradsOfNow() : outer_(std::exchange(current_grads, this)) {}

GradsOfNow::~GradsOfNow() {
  current_grads = outer_;
  for (auto& [leaf, grad] : grads_) leaf.mutable_grad() = std::move(grad);
}

void GradsOfNow::set_aside(const torch::autograd::edge_list& roots) {
  walk(roots, [this](torch::autograd::Node& node) {
    const auto* const leaf =
        dynamic_cast<torch::autograd::AccumulateGrad*>(&node);
    if (!leaf) return true;
    const at::Tensor& variable = leaf->variable;
    const bool is_aside = std::ranges::any_of(
        grads_, [&](const auto& each) { return each.first.is_same(variable); });
    if (!is_aside) {
      grads_.emplace_back(variable, variable.grad());
      variable.mutable_grad().reset();
    }
    return true;
  });
}

std::optional<int64_t> between_additions(const std::function<void()>& look) {
  Additions& all = Additions::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.running > 0) return std::nullopt;
  look();
  return all.ended;
}

}  // namespace gpipe::internal
