// Reads the arguments of a node as its operator's schema wants them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <functional>
#include <string>

#include "models/exported/json.h"
#include "models/exported/program.h"

namespace gpipe::exported {

// Returns the value with a name of the file. Throws c10::ValueError if there is
// none.
using FindValue = std::function<ValueId(const std::string& name)>;

// Returns the argument that `json`, a union Argument of the schema, describes.
// `type`: the type in the operator's schema; c10::NumberType for operations on
// numbers. Throws c10::ValueError if the file is damaged, or if the argument is
// of a kind that cannot be passed, such as a custom object. Thread-safe.
Argument read_argument(const Json& json, const c10::TypePtr& type,
                       const FindValue& find);

// Returns the 0-dimensional tensor that Python's binding makes of a number, for
// an operator that wants a tensor. It does not take part in the promotion of
// dtypes as other tensors do.
at::Tensor wrapped_number(const c10::IValue& number);

}  // namespace gpipe::exported
