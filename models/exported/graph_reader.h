// Reads the nodes of an exported program.
#pragma once

#include "models/exported/json.h"
#include "models/exported/program.h"
#include "models/exported/value_reader.h"

namespace gpipe::exported {

// Adds the nodes of `graph`, a Graph of the schema, and their values to
// `program` and `names`. The graphs of regions are inlined, each with its own
// names. Adds a line to Program::problems for each node that cannot run. Throws
// c10::ValueError if the file is damaged.
void read_nodes(const Json& graph, Names& names, Program& program);

}  // namespace gpipe::exported
