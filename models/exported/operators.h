// The targets of nodes: operators of LibTorch and what their schemas say,
// Python's arithmetic on numbers, operators that run graphs, and what to do
// about targets that cannot run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// Returns the operation of a target of the file, such as "_operator.mul" or
// "torch.sym_float"; nullopt if it is unknown. compute() has Python's results:
// integers stay integers, // and % round towards minus infinity, and / is
// exact for floating-point numbers. It throws c10::ValueError for a division by
// zero and for integers beyond 64 bits. Thread-safe.
std::optional<Operation> find_operation(const std::string& target);

// Returns the result of an operation on as many operands as it has. Throws what
// compute() throws. Thread-safe.
c10::IValue result_of(const Operation& operation,
                      const std::vector<c10::IValue>& operands);

// Returns whether a target of the file, such as "torch.ops.aten.add.Tensor",
// is an operator. Other targets are Python's operations on numbers.
bool is_operator(const std::string& target);

// Returns the operator of LibTorch, for such a target; nullopt if there is
// none, or if the target lacks the name of an overload. Thread-safe.
//
// Also knows transformers::grouped_mm_fallback, which transformers defines in
// Python and calls for mixtures of experts. The operator multiplies the rows
// `offs[k - 1]` to `offs[k] - 1` of `input` by the matrix `weight[k]`. Rows
// after the last group become 0. On the meta device all do. It has Python's
// gradients.
std::optional<c10::OperatorHandle> find_operator(const std::string& target);

// Notes in `node` what the schema says about `argument`, the next argument of
// `node`, whose formal argument is `formal`: whether the operator writes to it,
// is a training flag, a dropout rate, or running statistics. Sets the flags of
// cuDNN to true, because the exporting machine's setting must not decide about
// this one's. `node.op` must be set.
void note_argument(Node& node, const c10::Argument& formal, Argument& argument);

// Makes aten.squeeze and aten.squeeze_ keep dimensions of a tensor of `sizes`
// whose size is a symbol. The export drops none of them, since it takes them
// for larger than 1, but the rows of a micro-batch may be 1. Called before
// note_operator().
void squeeze_fixed_sizes(Node& node, const std::vector<Extent>& sizes);

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

// Returns the place of the argument that the operator of `node` may return, or
// views of it, although its schema does not say so; nullopt if it returns new
// memory. If the argument and the result are lists, their elements belong
// together. Counts a dropout only if it drops nothing in the mode of the
// export. `node.op` and `node.arguments` must be set.
std::optional<std::size_t> undeclared_alias(const Node& node);

// Returns whether a target is a higher-order operator, which calls graphs.
bool is_higher_order(const std::string& target);

// Returns the part of such a target after "torch.ops.higher_order.".
std::string_view higher_order_name(const std::string& target);

// Returns the control flow of such a target; nullopt if it is another operator.
std::optional<Control> find_control(const std::string& target);

// Returns whether `target` is a node of a function transform: torch.vmap or
// torch.func.jvp. A call of a transform has several nodes.
bool is_transform(const std::string& target);

// Returns what is wrong with `target`, a node that cannot run, and what to do:
// "is control flow, which is not supported; ...".
std::string advice_on(const std::string& target);

}  // namespace gpipe::exported
