#include "training/program/epochs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "training/data/random.h"

namespace gpipe::train_program {

int64_t held_out_of(int64_t items, double part, const std::string& name) {
  const auto count =
      static_cast<int64_t>(std::llround(part * static_cast<double>(items)));
  TORCH_CHECK_VALUE(part > 0 && count > 0 && count < items, "--held_out=", part,
                    " of ", items, " ", name, " is ", count,
                    "; training and testing each need at least one");
  return count;
}

int64_t limited(int64_t batches, const Options& options) {
  const int64_t limit = options.limit;
  if (limit == 0) return batches;
  TORCH_CHECK_VALUE(limit >= options.batch, "--limit=", limit,
                    " is less than a mini-batch, which has ", options.batch,
                    ": use a larger limit, or smaller mini-batches");
  return std::min(batches, limit / options.batch);
}

Epochs::Epochs(int64_t items, const Options& options)
    : items_(items), batch_(options.batch), seed_(options.seed) {
  TORCH_CHECK_VALUE(batch_ > 0, "--batch=", batch_, ": must be at least 1");
  TORCH_CHECK_VALUE(items >= batch_, "--batch=", batch_, " is more than the ",
                    items, " items of the training data");
  batches_ = limited(items / batch_, options);
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
