#include "training/program/step_counts.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace gpipe::train_program {

int64_t steps_of(const Options& options, const Task& task) {
  TORCH_CHECK_VALUE(options.steps >= 0 && options.epochs > 0,
                    "--steps=", options.steps, " and --epochs=", options.epochs,
                    ": --steps must be at least 0 and --epochs at least 1");
  if (options.steps > 0) return options.steps;
  return std::max<int64_t>(
      1, options.epochs * task.train_batches() / options.accumulate);
}

int64_t eval_every(const Options& options, const Task& task) {
  if (options.eval_every != 0) return options.eval_every;
  return std::max<int64_t>(1, task.train_batches() / options.accumulate);
}

}  // namespace gpipe::train_program
