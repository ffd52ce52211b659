#include "models/exported/comparison.h"

#include <ATen/Functions.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace gpipe::exported {
namespace {

// Returns the tensors `prefix`0, `prefix`1, ...
std::vector<at::Tensor> numbered(const StateDict& tensors,
                                 const std::string& prefix) {
  std::vector<at::Tensor> found;
  while (const auto* each =
             tensors.find(prefix + std::to_string(found.size()))) {
    found.push_back(*each);
  }
  return found;
}

// Returns the tensors whose names begin with `prefix`, without the prefix.
StateDict named(const StateDict& tensors, const std::string& prefix) {
  StateDict found;
  for (const auto& item : tensors) {
    if (!item.key().starts_with(prefix)) continue;
    found.insert(item.key().substr(prefix.size()), item.value());
  }
  return found;
}

// Returns the elements as type double, which holds those of each floating-point
// type. Complex elements become two.
at::Tensor as_double(const at::Tensor& tensor) {
  const at::Tensor real =
      tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return real.to(at::kDouble);
}

// Returns whether all elements have the same bits. NaN equals NaN.
bool equal_elements(const at::Tensor& found, const at::Tensor& expected) {
  if (c10::isIntegralType(found.scalar_type(), /*includeBool=*/true)) {
    return at::equal(found, expected);
  }
  const auto bits = [](const at::Tensor& tensor) {
    const at::Tensor x = as_double(tensor.detach());
    return x.masked_fill(x.isnan(), NAN).view(at::kLong);
  };
  return at::equal(bits(found), bits(expected));
}

// Adds the comparison of one tensor to `difference`.
void compare(Difference& difference, const std::string& name,
             const at::Tensor& found, const at::Tensor& expected) {
  TORCH_CHECK_VALUE(found.sizes() == expected.sizes() &&
                        found.scalar_type() == expected.scalar_type(),
                    name, " is ", found.scalar_type(), " ", found.sizes(),
                    ", but ", expected.scalar_type(), " ", expected.sizes(),
                    " is expected");
  ++difference.tensors;
  if (found.numel() == 0 || equal_elements(found, expected)) return;
  difference.equal_bits = false;
  const at::Tensor x = as_double(found), y = as_double(expected);
  const double scale = std::max(y.abs().max().item<double>(), 1e-30);
  const double largest = (x - y).abs().max().item<double>() / scale;
  // NaN counts as largest.
  if (std::isnan(difference.largest)) return;
  // Zeros of other signs differ by 0.
  if (difference.where.empty() || !(largest <= difference.largest)) {
    difference.largest = largest;
    difference.where = name;
  }
}

// Compares outputs. `mode`: what errors and names say after "output".
Difference compare(const std::vector<at::Tensor>& found,
                   const std::vector<at::Tensor>& expected,
                   const std::string& mode) {
  TORCH_CHECK_VALUE(found.size() == expected.size(), "there are ", found.size(),
                    " outputs", mode, ", but ", expected.size(),
                    " are expected");
  Difference difference;
  for (std::size_t k = 0; k < found.size(); ++k) {
    compare(difference, "output " + std::to_string(k) + mode, found[k],
            expected[k]);
  }
  return difference;
}

// `optional`: names that `expected` may lack.
Difference compare(const StateDict& found, const StateDict& expected,
                   const std::string& what,
                   const std::set<std::string>& optional = {}) {
  for (const auto& item : found) {
    TORCH_CHECK_VALUE(
        expected.contains(item.key()) || optional.contains(item.key()),
        "the reference has no ", what, " of ", item.key(),
        "; make it again with tools/export_examples.py");
  }
  Difference difference;
  for (const auto& item : expected) {
    const at::Tensor* each = found.find(item.key());
    TORCH_CHECK_VALUE(each, "there is no ", what, " of ", item.key());
    compare(difference, item.key(), each->to_dense(), item.value().to_dense());
  }
  return difference;
}

// Returns the results of a step, whose names begin with `prefix`. Each of
// `outputs` needs a weight in the loss.
ExportedStep step_in(const StateDict& tensors, const std::string& prefix,
                     std::size_t outputs) {
  ExportedStep step{numbered(tensors, prefix + "output."),
                    named(tensors, prefix + "grad."),
                    named(tensors, prefix + "buffer."),
                    {},
                    numbered(tensors, prefix + "eval.")};
  TORCH_CHECK_VALUE(step.outputs.size() == outputs, "has ", step.outputs.size(),
                    " tensors ", prefix, "output.i, but ", outputs,
                    " tensors weight.i; each output needs a weight in the "
                    "loss");
  return step;
}

}  // namespace

Reference reference_of(const StateDict& tensors) {
  Reference reference;
  reference.inputs = numbered(tensors, "input.");
  reference.weights = numbered(tensors, "weight.");
  TORCH_CHECK_VALUE(!reference.inputs.empty(),
                    "has no tensor input.0; make it with "
                    "tools/export_examples.py");
  reference.step = step_in(tensors, "", reference.weights.size());
  if (const at::Tensor* count = tensors.find("micro.count")) {
    const int64_t rows = reference.inputs[0].size(0);
    reference.chunks = count->item<int64_t>();
    TORCH_CHECK_VALUE(reference.chunks > 0 && reference.chunks <= rows,
                      "has micro.count ", reference.chunks, " for ", rows,
                      " rows");
    reference.in_chunks = step_in(tensors, "micro.", reference.weights.size());
  }
  return reference;
}

ExportedStep step_of(const ExportedModel& model,
                     const std::vector<at::Tensor>& outputs,
                     std::vector<at::Tensor> evaluated) {
  ExportedStep step;
  step.evaluated = std::move(evaluated);
  for (const at::Tensor& each : outputs) step.outputs.push_back(each.detach());
  const auto python_name = [](const std::string& name) {
    return name.substr(name.find('.') + 1);
  };
  StateDict parameters;
  for (const auto& item : model.layers->named_parameters()) {
    parameters.insert(python_name(item.key()), item.value());
    if (item.value().grad().defined()) {
      step.grads.insert(python_name(item.key()), item.value().grad().clone());
    }
  }
  const StateDict state = model.state_dict();
  for (const auto& item : model.layers->named_buffers()) {
    const std::string name = python_name(item.key());
    if (step.buffers.contains(name)) continue;
    step.buffers.insert(name, item.value().clone());
    if (!state.contains(name)) step.optional.insert(name);
  }
  // A weight that no node reads is in no layer, such as num_batches_tracked of
  // an InstanceNorm.
  for (const auto& item : state) {
    if (!step.buffers.contains(item.key()) &&
        !parameters.contains(item.key())) {
      step.buffers.insert(item.key(), item.value().clone());
      step.optional.insert(item.key());
    }
  }
  return step;
}

std::vector<at::Tensor> join_rows(
    const std::vector<std::vector<at::Tensor>>& microbatches) {
  std::vector<at::Tensor> whole;
  for (std::size_t i = 0; i < microbatches.at(0).size(); ++i) {
    std::vector<at::Tensor> rows;
    for (const auto& each : microbatches) rows.push_back(each[i]);
    whole.push_back(at::cat(rows));
  }
  return whole;
}

at::Tensor loss_of(const std::vector<at::Tensor>& outputs,
                   const std::vector<at::Tensor>& weights) {
  at::Tensor loss;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const at::Tensor part = (outputs[k] * weights[k]).sum();
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

StepDifference differences(const ExportedStep& step,
                           const ExportedStep& expected) {
  return {compare(step.outputs, expected.outputs, ""),
          compare(step.grads, expected.grads, "gradient"),
          compare(step.buffers, expected.buffers, "buffer", step.optional),
          compare(step.evaluated, expected.evaluated, " in eval()")};
}

std::string text_of(const Difference& difference, const std::string& what) {
  const std::string count = std::to_string(difference.tensors) + " " + what;
  if (difference.equal_bits) return count + " bit-equal";
  return count + " differ by up to " +
         absl::StrFormat("%.1e", difference.largest) +
         " of the largest element (" + difference.where + ")";
}

}  // namespace gpipe::exported
