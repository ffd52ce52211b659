// Compares steps of an exported program with those of Python.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "models/exported/exported.h"
#include "models/weights/state_dict.h"

namespace gpipe::exported {

// The results of a training step.
struct ExportedStep {
  std::vector<at::Tensor> outputs;
  StateDict grads, buffers;  // by Python's names
  // The names in `buffers` that Python's step may lack: constants and other
  // buffers outside of the state dict, weights that no node reads, and further
  // names of tied weights.
  std::set<std::string> optional = {};
  // The outputs in eval mode, before the step. Empty if they are not known.
  std::vector<at::Tensor> evaluated = {};
};

// A step that Python made with exported.module() on one thread, in train mode
// with torch.manual_seed(7). Its loss is the sum over i of
// (outputs[i] * weights[i]).sum().
struct Reference {
  std::vector<at::Tensor> inputs, weights;
  ExportedStep step;
  // The same step in `chunks` micro-batches: all forwards, then all backwards,
  // in order. 0 if the file has no such step.
  int64_t chunks = 0;
  ExportedStep in_chunks;
};

// Reads a reference from the tensors input.i, output.i, weight.i, grad.NAME,
// buffer.NAME and eval.i, and micro.count, micro.output.i, micro.grad.NAME,
// micro.buffer.NAME and micro.eval.i for the step in micro-batches. Ignores
// other names. Throws c10::ValueError if there is no input, if the numbers of
// outputs and weights differ, or if micro.count is not from 1 to the number of
// rows.
Reference reference_of(const StateDict& tensors);

// Returns the results of a step with `model` that gave `outputs`, and
// `evaluated` in eval mode before it. The gradients and buffers are copies. The
// buffers include those weights of the state dict that are in no layer.
ExportedStep step_of(const ExportedModel& model,
                     const std::vector<at::Tensor>& outputs,
                     std::vector<at::Tensor> evaluated = {});

// Calls `module`, a Sequential or a GPipe of an exported program. `outputs`:
// how many there are.
template <typename Module>
std::vector<at::Tensor> call(Module& module,
                             const std::vector<at::Tensor>& inputs,
                             std::size_t outputs) {
  using Tensors = std::vector<at::Tensor>;
  const auto run = [&](const auto& input) -> Tensors {
    if (outputs == 1) return {module->template forward<at::Tensor>(input)};
    return module->template forward<Tensors>(input);
  };
  return inputs.size() == 1 ? run(inputs[0]) : run(inputs);
}

// Returns the outputs of a mini-batch from those of its micro-batches, all with
// the same number of outputs: rows are joined in order.
std::vector<at::Tensor> join_rows(
    const std::vector<std::vector<at::Tensor>>& microbatches);

// Returns the loss of a Reference for these outputs and weights.
at::Tensor loss_of(const std::vector<at::Tensor>& outputs,
                   const std::vector<at::Tensor>& weights);

// How far tensors are from those that are expected.
struct Difference {
  int64_t tensors = 0;
  bool equal_bits = true;  // of all elements; NaN equals NaN
  // The largest difference of two elements, divided by the largest element that
  // is expected in the tensor, and the name of this tensor.
  double largest = 0;
  std::string where;
};

struct StepDifference {
  Difference outputs, grads, buffers, evaluated;
};

// Compares the results of two steps. Sparse tensors count as dense ones. Throws
// c10::ValueError, which names the tensor, if one of them lacks a tensor,
// except those of ExportedStep::optional, or if shapes or dtypes differ.
StepDifference differences(const ExportedStep& step,
                           const ExportedStep& expected);

// Returns "62 gradients bit-equal", or "62 gradients differ by up to 3.1e-07 of
// the largest element (fc.weight)". `what`: "gradients".
std::string text_of(const Difference& difference, const std::string& what);

}  // namespace gpipe::exported
