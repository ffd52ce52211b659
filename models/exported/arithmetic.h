// Python's arithmetic on numbers, which exported programs do with sizes.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

namespace gpipe::exported {

// An operation on one or two numbers (integers, floating-point numbers, truth
// values). `second` is ignored if there is one operand.
struct Operation {
  c10::IValue (*compute)(const c10::IValue& first, const c10::IValue& second);
  int operands;
};

// Returns the operation of a target of the file, such as "_operator.mul" or
// "torch.sym_float"; nullopt if it is unknown. compute() has Python's results:
// integers stay integers, // and % round towards minus infinity, and / is
// exact for floating-point numbers. It throws c10::ValueError for a division by
// zero and for integers beyond 64 bits. Thread-safe.
std::optional<Operation> find_operation(const std::string& target);

}  // namespace gpipe::exported
