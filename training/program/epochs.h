// The items of a data set that form each mini-batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Returns how many of `items` items are for testing, if `part` of them are.
// `name`: what they are, for the error: "images". Throws c10::ValueError if
// training or testing would have none.
int64_t held_out_of(int64_t items, double part, const std::string& name);

// Returns the number of mini-batches per epoch if the data has `batches` of
// them: all, or those of Options::limit. Throws c10::ValueError if the limit is
// negative or less than a mini-batch.
int64_t limited(int64_t batches, const Options& options);

// A shuffled order of the items for each epoch, cut into mini-batches of equal
// size. Each epoch skips the remainder of its own order, and what is above
// Options::limit. Not thread-safe.
class Epochs {
 public:
  // Uses the mini-batch size, the limit and the seed of `options`. Throws
  // c10::ValueError if the size is below 1 or above `items`, and what limited()
  // throws.
  Epochs(int64_t items, const Options& options);

  // Returns the number of mini-batches per epoch.
  int64_t batches() const { return batches_; }

  // The items of some rows of a mini-batch.
  struct Items {
    uint64_t seed = 0;  // the seed of the epoch
    std::vector<int64_t> indices;
  };
  // Returns the items of mini-batch `index`, counted from 0 over all epochs.
  Items at(int64_t index, Rows rows);

 private:
  int64_t items_, batch_, batches_;
  uint64_t seed_;
  int64_t epoch_ = -1;  // of order_
  std::vector<int64_t> order_;
};

}  // namespace gpipe::train_program
