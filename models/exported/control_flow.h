// Runs control flow: nodes that run graphs, with the gradients of Python.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// Runs the body with number `body` of a node, and returns its outputs. Both
// `inputs` and outputs are tensors and numbers; an output may be None.
using RunBody = std::function<std::vector<c10::IValue>(
    std::size_t body, std::vector<c10::IValue> inputs)>;

// Returns the results of a node of control flow. `arguments`: those of the
// node, see Control. A predicate on a device is copied to the host, which waits
// for it.
//
// Gradients are those of torch.autograd.Function in Python: results require
// grad if an operand does, an operand that no result depends on has a gradient
// of zeros, and the gradients of one run of a body are summed before others.
//
// Tensors on the meta device have no values: the first branch of kCond is run,
// and kWhile runs once.
//
// Throws c10::ValueError if there are no rows to scan or to map. Thread-safe,
// if `run` is.
std::vector<c10::IValue> run_control(
    Control control, const std::vector<std::vector<c10::IValue>>& arguments,
    const RunBody& run);

}  // namespace gpipe::exported
