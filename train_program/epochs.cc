#include "train_program/epochs.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "data/random.h"

namespace gpipe::train_program {

int64_t held_out_of(int64_t items, double part, const std::string& name) {
  const auto count =
      static_cast<int64_t>(std::llround(part * static_cast<double>(items)));
  TORCH_CHECK_VALUE(part > 0 && count > 0 && count < items, "--held_out=", part,
                    " of ", items, " ", name, " is ", count,
                    "; training and testing each need at least one");
  return count;
}

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
