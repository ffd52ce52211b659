// Operators of exported programs, and what their schemas say about nodes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// Returns whether a target of the file, such as "torch.ops.aten.add.Tensor",
// is an operator. Other targets are Python's operations on numbers.
bool is_operator(const std::string& target);

// Returns the operator of LibTorch, or one of python_operators.h, for such a
// target; nullopt if neither has it, or if the target lacks the name of an
// overload. Thread-safe.
std::optional<c10::OperatorHandle> find_operator(const std::string& target);

// Notes in `node` what the schema says about `argument`, the next argument of
// `node`, whose formal argument is `formal`: whether the operator writes to it,
// is a training flag, a dropout rate, or running statistics. Sets the flags of
// cuDNN to true, because the exporting machine's setting must not decide about
// this one's. `node.op` must be set.
void note_argument(Node& node, const c10::Argument& formal, Argument& argument);

// Notes in `node` what its operator and all its arguments say: whether it is
// random, whether it reads a size, whether it has no gradient, and whether it
// changes running statistics.
// An operator whose training flag is false is not random and changes none. Must
// be called once, after the last note_argument().
void note_operator(Node& node);

// Returns the places of the arguments whose memory the result at place `result`
// may share, in order.
std::vector<std::size_t> shared_arguments(const c10::FunctionSchema& schema,
                                          std::size_t result);

}  // namespace gpipe::exported
