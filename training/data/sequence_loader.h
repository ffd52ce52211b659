// Micro-batches of sequences that have similar lengths.
#pragma once

#include <cstdint>
#include <vector>

#include "training/data/sequences.h"
#include "training/data/text.h"

namespace gpipe::data {

// Returns the number of rows in each of `count` parts of consecutive rows, at
// least 1 each. `lengths`: the padded lengths of the rows, ascending. The
// tokens of a part, with padding, are its rows times its largest length. The
// largest part has the fewest tokens possible, since the slowest micro-batch
// determines the bubble of a pipeline. There must be at least `count` rows.
std::vector<int64_t> cut_by_tokens(const std::vector<int64_t>& lengths,
                                   int64_t count);

// An endless stream of sequences for training. It has all sequences of epoch 0
// in a random order, then those of epoch 1 in another order, and so on. The
// stream depends only on the sequences and the seed. Not thread-safe.
class SequenceLoader {
 public:
  // `multiple`: see Sequences::rows(). Throws c10::ValueError if it is below 1
  // or if there are no sequences.
  SequenceLoader(Sequences sequences, int64_t multiple, uint64_t seed);

  // Returns the indices of the sequences at the places from `begin` to `end` of
  // the stream, without `end`.
  std::vector<int64_t> indices(int64_t begin, int64_t end);

  // Returns these sequences as one padded tensor, in the order of the stream.
  TextWindows rows(int64_t begin, int64_t end);

  // Returns these sequences in `count` micro-batches, the shortest sequences
  // first, each padded to its own longest sequence. cut_by_tokens() chooses the
  // micro-batches. Throws c10::ValueError if there are fewer than `count`
  // sequences, or if `count` is below 1.
  std::vector<TextWindows> parts(int64_t begin, int64_t end, int64_t count);

 private:
  const Sequences sequences_;
  const int64_t multiple_;
  const uint64_t seed_;
  int64_t epoch_ = -1;  // of order_
  std::vector<int64_t> order_;
};

}  // namespace gpipe::data
