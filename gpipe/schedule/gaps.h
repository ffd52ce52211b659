// A limit on gaps in the numbers of stages and micro-batches.
#pragma once

#include <cstddef>

namespace gpipe::internal {

// Returns the largest accepted number of cells (stages, or stages times
// micro-batches) for a schedule of `actions` actions. A part of a schedule, for
// example one stage of many, may leave out many numbers. The limit keeps a
// mistyped number from allocating all memory.
inline double most_cells(std::size_t actions) {
  return 1e6 + 1e3 * static_cast<double>(actions);
}

}  // namespace gpipe::internal
