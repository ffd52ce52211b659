// How many micro-batches a mini-batch gives. No LibTorch.
#pragma once

#include <cstdint>

namespace gpipe {

// Returns the rows of a micro-batch if `rows` rows are split into at most
// `chunks` micro-batches as torch::chunk does. The last micro-batch may have
// fewer rows. `rows` and `chunks` must be positive.
inline int64_t rows_per_microbatch(int64_t rows, int64_t chunks) {
  return (rows + chunks - 1) / chunks;
}

// Returns the number of micro-batches: `chunks`, or fewer if the rows do not
// give so many.
inline int64_t num_microbatches(int64_t rows, int64_t chunks) {
  const int64_t each = rows_per_microbatch(rows, chunks);
  return (rows + each - 1) / each;
}

}  // namespace gpipe
