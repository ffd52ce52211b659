// How much a schedule may leave out.
#pragma once

#include <cstddef>

namespace gpipe {

// The most cells (stages, or stages times micro-batches) that a list of so many
// actions may count: a part of a schedule, say one stage of many, may leave
// much out, but a slip of the pen must not take all memory.
inline double most_cells(std::size_t actions) {
  return 1e6 + 1e3 * static_cast<double>(actions);
}

}  // namespace gpipe
