// Reads the values of an exported graph: names, sizes, dtypes.
#pragma once

#include <string>
#include <unordered_map>

#include "models/exported/json.h"
#include "models/exported/program.h"

namespace gpipe::exported {

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

// Adds a value to `program`. Its sizes, its dtype and whether it is dense come
// from the entry `name` of the lists of values in `graph`, if there is one.
// Throws c10::ValueError if the entry is damaged.
ValueId add_value(Program& program, const Json& graph, const std::string& name,
                  bool is_tensor, Origin origin);

}  // namespace gpipe::exported
