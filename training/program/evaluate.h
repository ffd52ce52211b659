// The evaluation of a model on held-out data, and on the training data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "training/program/engine.h"
#include "training/program/precision.h"
#include "training/program/step_data.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// An evaluation, and the training since the one before.
struct Evaluation {
  int64_t step = 0;   // steps done
  double losses = 0;  // sum over `steps`
  int64_t steps = 0;  // number of steps since the evaluation before
  // On the training data of these steps, while the weights change; without
  // items unless Options::train_score is set.
  Score train;
  Score test;
  // Of these steps: wall time, and CPU time of all threads of this process.
  double seconds = 0, cpu_seconds = 0;
};

// Returns the score on the whole test set, the same in all processes. The
// module is in evaluation mode during the call and returns to its mode after.
//
// Replicas share the mini-batches if their buffers are equal. With BatchNorm
// the buffers may differ. Then only the score of the first replica counts,
// since a run checkpoint contains the buffers of that replica.
//
// `stop`: a function that is called before each mini-batch. If it returns true
// in any process, the result is nullopt in all.
std::optional<Score> evaluate(Engine& engine, Task& task,
                              const Precision& precision,
                              const std::function<bool()>& stop);

// Returns the score of a step on its training data; without items if this
// process has no outputs (TrainOptions::outputs).
Score score_of_step(const Task& task, const StepData& data,
                    const StepResult& result);

// Returns "loss 2.31 | train accuracy 9.38 | test loss 2.24 | test accuracy
// 12.5" and adds the numbers to `values`, under the names of metrics.csv. The
// metric on the training data is left out if it has no items.
std::string metrics_of(const Evaluation& evaluation, const Task& task,
                       std::map<std::string, double>& values);

// Returns the sum of the scores of all processes.
Score sum_of_all(const Engine& engine, const Score& here);

}  // namespace gpipe::train_program
