// Which items of a data set are in which mini-batch.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/task.h"

namespace gpipe::trainer {

// All items once per epoch, in an order of its own for each, in mini-batches of
// equal size; a remainder is left out, another one in each epoch.
// Threads: one at a time.
class Epochs {
 public:
  // c10::ValueError for a batch that is below 1, or more than there is.
  Epochs(int64_t items, int64_t batch, uint64_t seed);

  int64_t batches() const { return items_ / batch_; }

  struct Items {
    uint64_t seed = 0;  // of the epoch
    std::vector<int64_t> indices;
  };
  // Of mini-batch 0, 1, ... over all epochs.
  Items at(int64_t index, Rows rows);

 private:
  int64_t items_, batch_;
  uint64_t seed_;
  int64_t epoch_ = -1;  // of order_
  std::vector<int64_t> order_;
};

}  // namespace gpipe::trainer
