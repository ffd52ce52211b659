// Reads the nodes of an exported program.
#pragma once

#include <string>
#include <unordered_map>

#include "exported/json.h"
#include "exported/program.h"

namespace gpipe::exported {

// The values of one graph of the file, by name.
using Names = std::unordered_map<std::string, ValueId>;

// Returns the value `name`. Throws c10::ValueError if there is none.
ValueId find_value(const Names& names, const std::string& name);

// Adds a value to `program`. Its sizes and its dtype come from the entry `name`
// of the lists of values in `graph`, if it has one.
ValueId add_value(Program& program, const Json& graph, const std::string& name,
                  bool is_tensor, Origin origin);

// Adds the nodes of `graph`, a Graph of the schema, and their values to
// `program` and `names`. The graphs of regions are inlined, each with its own
// names. Adds a line to Program::problems for each node that cannot run. Throws
// c10::ValueError if the file is damaged.
void read_nodes(const Json& graph, Names& names, Program& program);

}  // namespace gpipe::exported
