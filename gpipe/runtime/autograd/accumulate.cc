#include "gpipe/runtime/autograd/accumulate.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

#include "gpipe/libtorch/node.h"

namespace gpipe::internal {
namespace {

// A node whose backward returns `grads`: the root from which the engine starts.
struct Source : public torch::autograd::Node {
  Source(torch::autograd::edge_list edges, std::vector<at::Tensor> grads)
      : Node(std::move(edges)), grads(std::move(grads)) {}
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&&) override {
    return std::move(grads);
  }
  std::string name() const override { return "gpipe::TrainStep"; }

  std::vector<at::Tensor> grads;
};

}  // namespace

void accumulate(std::vector<torch::autograd::Edge> edges,
                std::vector<at::Tensor> grads) {
  torch::autograd::edge_list targets;
  std::vector<at::Tensor> given;
  for (std::size_t k = 0; k < edges.size(); ++k) {
    if (!grads[k].defined()) continue;
    targets.push_back(std::move(edges[k]));
    given.push_back(std::move(grads[k]));
  }
  if (targets.empty()) return;
  const at::Tensor start = at::empty({0});
  const NodePtr source =
      make_node<Source>(std::move(targets), std::move(given));
  source->add_input_metadata(start);
  torch::autograd::Engine::get_default_engine().execute(
      {torch::autograd::Edge(source, 0)}, {start}, /*keep_graph=*/false,
      /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace gpipe::internal
