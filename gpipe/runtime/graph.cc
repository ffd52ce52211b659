#include "gpipe/runtime/graph.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_set>
#include <utility>

namespace gpipe {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Where the graph of a cell begins. Never run: the engine takes the gradients
// that arrive here as results.
struct Begin : public Node {
  variable_list apply(variable_list&& grads) override {
    return std::move(grads);
  }
  std::string name() const override { return "gpipe::Begin"; }
};

}  // namespace

Entry::Entry(const std::vector<Crossing>& crossings, bool leaf) {
  tensors_.reserve(crossings.size());
  edges_.resize(crossings.size());
  std::shared_ptr<Node> begin;
  for (std::size_t k = 0; k < crossings.size(); ++k) {
    const Crossing& crossing = crossings[k];
    if (!crossing.tensor.defined() || !c10::GradMode::is_enabled() ||
        !crossing.requires_grad) {
      tensors_.push_back(crossing.tensor.defined() ? crossing.tensor.detach()
                                                   : crossing.tensor);
      continue;
    }
    at::Tensor tensor = crossing.tensor.detach();
    if (leaf) {
      tensor.requires_grad_();
    } else {
      if (!begin) {
        begin = std::shared_ptr<Node>(new Begin(), torch::autograd::deleteNode);
      }
      torch::autograd::create_gradient_edge(tensor, begin);
    }
    edges_[k] = torch::autograd::impl::gradient_edge(tensor);
    tensors_.push_back(std::move(tensor));
  }
}

Crossing leave(const at::Tensor& output) {
  if (!output.defined()) return {};
  return {output.detach(), output.requires_grad()};
}

std::vector<at::Tensor> find_leaves(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<Node*> seen;
  std::vector<Node*> stack;
  const auto visit = [&](const Edge& edge) {
    Node* node = edge.function.get();
    if (node && seen.insert(node).second) stack.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      visit(torch::autograd::impl::gradient_edge(output));
    }
  }
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    // Only leaves' nodes have no next edge; the cast is dear.
    if (node->num_outputs() == 0) {
      if (auto* sink = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
        leaves.push_back(sink->variable);
      }
      continue;
    }
    for (const Edge& edge : node->next_edges()) visit(edge);
  }
  return leaves;
}

std::vector<at::Tensor> run_backward(const std::vector<at::Tensor>& outputs,
                                     std::vector<at::Tensor> grads,
                                     const edge_list& targets,
                                     bool keep_graph) {
  edge_list roots;
  variable_list root_grads;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!outputs[k].defined() || !outputs[k].requires_grad() ||
        !grads[k].defined()) {
      continue;
    }
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[k]));
    root_grads.push_back(std::move(grads[k]));
  }
  edge_list wanted;
  for (const Edge& edge : targets) {
    if (edge.is_valid()) wanted.push_back(edge);
  }
  std::vector<at::Tensor> result(targets.size());
  if (roots.empty() || wanted.empty()) return result;

  auto found = torch::autograd::Engine::get_default_engine().execute(
      roots, root_grads, keep_graph, /*create_graph=*/false,
      /*accumulate_grad=*/false, wanted);
  std::size_t next = 0;
  for (std::size_t k = 0; k < targets.size(); ++k) {
    if (targets[k].is_valid()) result[k] = std::move(found[next++]);
  }
  return result;
}

}  // namespace gpipe
