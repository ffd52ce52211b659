#include "train_program/epochs.h"

#include <c10/util/Exception.h>

#include "data/random.h"

namespace gpipe::train_program {

Epochs::Epochs(int64_t items, int64_t batch, uint64_t seed)
    : items_(items), batch_(batch), seed_(seed) {
  TORCH_CHECK_VALUE(batch > 0, "--batch=", batch, ": must be at least 1");
  TORCH_CHECK_VALUE(items >= batch, "--batch=", batch, " is more than the ",
                    items, " items of the training data");
}

Epochs::Items Epochs::at(int64_t index, Rows rows) {
  const int64_t epoch = index / batches();
  const uint64_t seed = data::mix_seed(seed_, 2, epoch);
  if (epoch != epoch_) {
    order_ = data::permutation(items_, seed);
    epoch_ = epoch;
  }
  const auto first = order_.begin() + index % batches() * batch_;
  return {seed, {first + rows.begin, first + rows.end}};
}

}  // namespace gpipe::train_program
