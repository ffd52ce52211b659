// Reads the JSON of exported programs: the numbers of dtypes, layouts and
// memory formats, values, and arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "gpipe/base/json.h"
#include "models/exported/program.h"

namespace gpipe::exported {

using internal::boolean;
using internal::field;
using internal::find_field;
using internal::integer;
using internal::Json;
using internal::list;
using internal::object;
using internal::read_json;
using internal::text;

// All functions of this file throw c10::ValueError if the JSON is not what they
// return. Thread-safe.

// Returns a floating-point number. JSON has no infinities, so PyTorch writes
// the texts "Infinity", "-Infinity" and "NaN".
double real(const Json& json);

// The content of a union of the schema, which is an object with one entry, the
// name of the alternative: {"as_int": 3}.
struct Alternative {
  const std::string& name;
  const Json& value;
};
Alternative alternative(const Json& json);

// Returns the dtype of a number of PyTorch's torch/_export/serde/schema.py. The
// numbers differ from those of c10. Throws c10::ValueError if the number is
// unknown. Thread-safe.
c10::ScalarType dtype_of(int64_t number);

// Throws c10::ValueError unless `number` is that of strided tensors, the only
// layout that is read. Thread-safe.
void check_layout(int64_t number);

// The values of one graph of the file, by name.
using Names = std::unordered_map<std::string, ValueId>;

// Returns the value `name`. Throws c10::ValueError if there is none.
ValueId find_value(const Names& names, const std::string& name);

// Returns the name in `argument`, a union Argument of the schema that holds a
// tensor or a number. Throws c10::ValueError if it holds something else.
const std::string& value_name(const Json& argument);

// Returns whether `argument`, a union Argument of the schema, holds a number by
// its name, and not a tensor or a constant.
bool is_named_number(const Json& argument);

// What a Graph of the schema says about its values, by their names. Refers to
// the JSON.
class GraphValues {
 public:
  explicit GraphValues(const Json& graph);

  // Adds a value to `program`. Its sizes, its dtype and whether it is dense are
  // those of the entry `name`, if there is one.
  ValueId add(Program& program, const std::string& name, bool is_tensor,
              Origin origin) const;

 private:
  std::unordered_map<std::string_view, const Json*> tensors_, numbers_;
};

// Returns the argument that `json`, a union Argument of the schema, describes.
// `type`: the type in the operator's schema; c10::NumberType for operations on
// numbers. `names`: the values that the argument may read. Throws
// c10::ValueError if the file is damaged, or if the argument is of a kind that
// cannot be passed, such as a custom object. Thread-safe.
Argument read_argument(const Json& json, const c10::TypePtr& type,
                       const Names& names);

// Returns the 0-dimensional tensor that Python's binding makes of a number, for
// an operator that wants a tensor. It does not take part in the promotion of
// dtypes as other tensors do.
at::Tensor wrapped_number(const c10::IValue& number);

}  // namespace gpipe::exported
