// Reasons why a program cannot be cut at a place.
#pragma once

#include <vector>

#include "exported/lives.h"
#include "exported/program.h"

namespace gpipe::exported {

// Returns, for each place (before node k), the number of reasons against a cut
// there that are known before the walk over the places:
// - a number that is computed from tensors crosses;
// - a tensor crosses that is changed in place later;
// - a slice of a larger tensor crosses, and has a gradient;
// - a buffer that changes is used on both sides, or the statistics of one norm
//   are.
// The result has one entry for each node. `lives`: those of `program`. Takes
// time n log n in the size of the program.
std::vector<int> count_obstacles(const Program& program, const Lives& lives);

}  // namespace gpipe::exported
