// Finds the dtypes that an exported program contains as constants.
#pragma once

#include <string>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// Returns a line for each node with an argument that is a floating-point dtype:
// the node, its Python module and its source line. Thread-safe.
std::vector<std::string> dtype_constants(const Program& program);

}  // namespace gpipe::exported
