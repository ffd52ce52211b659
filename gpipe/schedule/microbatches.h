// The micro-batches of a mini-batch: how many rows each has, and which of them
// are checkpointed. No LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace gpipe {

// ---- Rows

// Returns the rows of a micro-batch if `rows` rows are split into at most
// `chunks` micro-batches as torch::chunk does. The last micro-batch may have
// fewer rows. `rows` and `chunks` must be positive.
inline int64_t rows_per_microbatch(int64_t rows, int64_t chunks) {
  return rows / chunks + (rows % chunks > 0 ? 1 : 0);
}

// Returns the number of micro-batches: `chunks`, or fewer if the rows do not
// give so many.
inline int64_t num_microbatches(int64_t rows, int64_t chunks) {
  return rows_per_microbatch(rows, rows_per_microbatch(rows, chunks));
}

// Returns the rows of each micro-batch as torch::chunk splits them: 5 rows in 4
// chunks are 2, 2, 1. Without rows there are `chunks` empty micro-batches.
inline std::vector<int64_t> chunk_rows(int64_t rows, int64_t chunks) {
  if (rows == 0) return std::vector<int64_t>(chunks, 0);
  const int64_t each = rows_per_microbatch(rows, chunks);
  std::vector<int64_t> result;
  for (int64_t left = rows; left > 0; left -= each) {
    result.push_back(std::min(left, each));
  }
  return result;
}

// Returns the rows of each of `microbatches` micro-batches: as torch::chunk
// splits them if that gives so many, else as torch::tensor_split does, which
// gives the first ones one row more than the others (5 rows in 4: 2, 1, 1, 1).
// `rows` must be at least `microbatches`.
inline std::vector<int64_t> split_rows(int64_t rows, int64_t microbatches) {
  if (num_microbatches(rows, microbatches) == microbatches) {
    return chunk_rows(rows, microbatches);
  }
  std::vector<int64_t> result(microbatches, rows / microbatches);
  for (int64_t i = 0; i < rows % microbatches; ++i) ++result[i];
  return result;
}

// ---- Checkpoint modes

// Which micro-batches are checkpointed: between forward and backward their
// cells keep only their inputs, and run the forward again (recompute) just
// before the backward. This saves memory and costs about one more forward. It
// applies only in training mode and with gradients enabled.
enum class Checkpoint {
  kAlways,      // every micro-batch
  kExceptLast,  // all but the last, whose backward comes first anyway
  kNever,       // none
};

// Returns the name as in torchgpipe: "always", "except_last" or "never".
inline const char* to_string(Checkpoint mode) {
  // In the order of Checkpoint.
  constexpr const char* kNames[] = {"always", "except_last", "never"};
  return kNames[static_cast<int>(mode)];
}

// Returns how many of `microbatches` are checkpointed. These are the first
// ones.
inline int64_t checkpointed_microbatches(Checkpoint mode,
                                         int64_t microbatches) {
  if (mode == Checkpoint::kNever) return 0;
  return mode == Checkpoint::kAlways ? microbatches : microbatches - 1;
}

// Parses "always", "except_last" or "never". Throws std::invalid_argument,
// naming --checkpoint, for another text.
Checkpoint parse_checkpoint(std::string_view text);

}  // namespace gpipe
