#include "models/exported/control_flow.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <string>
#include <utility>

#include "gpipe/libtorch/node.h"

namespace gpipe::exported {
namespace {

using c10::IValue;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;
using Values = std::vector<IValue>;

// The sum of the gradients of an operand over its uses in a body. Zeros if no
// result of the body depends on the operand.
struct Operand : public torch::autograd::Node {
  using Node::Node;
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) grads[0] = input_metadata(0).zeros_like();
    return std::move(grads);
  }
  std::string name() const override { return "gpipe::Operand"; }
};

// Passes on the gradients of results. Its other edges lead to operands, so that
// each of these has a gradient.
struct Results : public torch::autograd::Node {
  using Node::Node;
  variable_list apply(variable_list&& grads) override {
    grads.resize(num_outputs());
    return std::move(grads);
  }
  std::string name() const override { return "gpipe::Results"; }
};

Edge edge_of(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return {};
  return torch::autograd::impl::gradient_edge(tensor);
}

bool has_gradient(const IValue& value) {
  return c10::GradMode::is_enabled() && value.isTensor() &&
         value.toTensor().defined() && value.toTensor().requires_grad();
}

// Returns `value` for one run of a body, see Operand.
IValue operand(const IValue& value) {
  if (!has_gradient(value)) return value;
  const at::Tensor& tensor = value.toTensor();
  at::Tensor alias = tensor.detach();
  torch::autograd::create_gradient_edge(
      alias, internal::make_node<Operand>(edge_list{edge_of(tensor)}));
  return alias;
}

Values operands(const Values& values) {
  Values result;
  result.reserve(values.size());
  for (const IValue& each : values) result.push_back(operand(each));
  return result;
}

void append(Values& values, const Values& more) {
  values.insert(values.end(), more.begin(), more.end());
}

bool is_differentiable(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         torch::autograd::isDifferentiableType(value.toTensor().scalar_type());
}

// Joins `results` to all of `operands`, see Results.
Values joined(Values results, const Values& operands) {
  edge_list edges;
  for (const IValue& each : results) {
    if (is_differentiable(each)) edges.push_back(edge_of(each.toTensor()));
  }
  for (const IValue& each : operands) {
    if (has_gradient(each)) edges.push_back(edge_of(each.toTensor()));
  }
  const auto node = internal::make_node<Results>(std::move(edges));
  for (IValue& each : results) {
    if (!is_differentiable(each)) continue;
    at::Tensor alias = each.toTensor().detach();
    torch::autograd::create_gradient_edge(alias, node);
    each = std::move(alias);
  }
  return results;
}

// Returns whether a predicate holds; `unknown` if it has no value.
bool holds(const IValue& predicate, bool unknown) {
  if (predicate.isBool()) return predicate.toBool();
  if (!predicate.isTensor()) return predicate.toScalar().toBool();
  const at::Tensor& tensor = predicate.toTensor();
  return tensor.is_meta() ? unknown : tensor.item().toBool();
}

Values run_while(const Values& replaced, const Values& constant,
                 const RunBody& run) {
  Values state = replaced;
  bool ran = false;
  const auto continues = [&] {
    const c10::AutoGradMode no_graph(false);
    Values inputs = state;
    append(inputs, constant);
    return holds(run(0, std::move(inputs)).at(0), /*unknown=*/!ran);
  };
  while (continues()) {
    Values inputs = operands(state);
    append(inputs, operands(constant));
    state = run(1, std::move(inputs));
    ran = true;
  }
  if (ran) return state;
  for (IValue& each : state) {
    if (each.isTensor()) each = each.toTensor().clone();
  }
  return state;
}

std::vector<at::Tensor> rows_of(const IValue& tensor) {
  const std::vector<at::Tensor> rows = tensor.toTensor().unbind();
  TORCH_CHECK_VALUE(!rows.empty(),
                    "runs a graph for each row of a tensor, but "
                    "the tensor has no rows");
  return rows;
}

// Returns the rows of all of `tensors`, one list for each row.
std::vector<Values> rows_of(const Values& tensors) {
  std::vector<Values> rows;
  TORCH_CHECK_VALUE(!tensors.empty(), "runs a graph for each row of no tensor");
  for (const IValue& each : tensors) {
    const std::vector<at::Tensor> own = rows_of(each);
    if (rows.empty()) rows.resize(own.size());
    TORCH_CHECK_VALUE(rows.size() == own.size(),
                      "runs a graph for each row of ", "tensors of ",
                      rows.size(), " and of ", own.size(), " rows");
    for (std::size_t k = 0; k < own.size(); ++k) rows[k].emplace_back(own[k]);
  }
  return rows;
}

// Returns the outputs of all runs, from number `first` on, as one tensor each.
Values stacked(const std::vector<Values>& runs, std::size_t first) {
  Values results;
  for (std::size_t k = first; k < runs.front().size(); ++k) {
    std::vector<at::Tensor> rows;
    for (const Values& each : runs) {
      if (each[k].isTensor()) rows.push_back(each[k].toTensor());
    }
    results.push_back(rows.empty() ? IValue() : IValue(at::stack(rows)));
  }
  return results;
}

Values run_scan(const Values& replaced, const Values& tensors,
                const Values& constant, const RunBody& run) {
  Values state = replaced;
  std::vector<Values> runs;
  for (const Values& row : rows_of(tensors)) {
    Values inputs = operands(state);
    append(inputs, operands(row));
    append(inputs, operands(constant));
    runs.push_back(run(0, std::move(inputs)));
    for (std::size_t k = 0; k < state.size(); ++k) {
      state[k] = std::exchange(runs.back()[k], IValue());
    }
  }
  append(state, stacked(runs, replaced.size()));
  return state;
}

// As Python, sums the gradients of a constant over a stack of those of all
// rows.
Values run_map(const Values& tensors, const Values& constant,
               const RunBody& run) {
  std::vector<Values> rows = rows_of(tensors);
  const auto count = static_cast<int64_t>(rows.size());
  for (const IValue& each : constant) {
    std::vector<at::Tensor> own;
    if (has_gradient(each)) {
      const at::Tensor& tensor = each.toTensor();
      std::vector<int64_t> sizes = tensor.sizes().vec();
      sizes.insert(sizes.begin(), count);
      own = tensor.expand(sizes).unbind();
    }
    for (int64_t k = 0; k < count; ++k) {
      rows[k].push_back(own.empty() ? each : IValue(own[k]));
    }
  }
  std::vector<Values> runs;
  for (const Values& row : rows) runs.push_back(run(0, operands(row)));
  return stacked(runs, 0);
}

}  // namespace

std::vector<IValue> run_control(Control control,
                                const std::vector<Values>& arguments,
                                const RunBody& run) {
  std::vector<Values> own;
  Values all;
  bool has_graph = false;
  for (const Values& each : arguments) {
    own.push_back(operands(each));
    append(all, own.back());
  }
  for (const IValue& each : all) has_graph = has_graph || has_gradient(each);
  Values results;
  switch (control) {
    case Control::kCond:
      results = run(holds(own[0].at(0), /*unknown=*/true) ? 0 : 1, own[1]);
      break;
    case Control::kWhile:
      results = run_while(own[0], own[1], run);
      break;
    case Control::kScan:
      results = run_scan(own[0], own[1], own[2], run);
      break;
    case Control::kMap:
      results = run_map(own[0], own[1], run);
      break;
    case Control::kNone:
      TORCH_INTERNAL_ASSERT(false, "the node has no control flow");
  }
  return has_graph ? joined(std::move(results), all) : results;
}

}  // namespace gpipe::exported
