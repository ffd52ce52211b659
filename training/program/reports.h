// What a run measures and prints: progress, scores, and steps beside their
// prediction.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "training/program/engine.h"
#include "training/program/step.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// ---- Progress

// The progress of a run that started at step `first` and ends at step `steps`.
struct Progress {
  int64_t first = 0, step = 0, steps = 0;  // `step`: steps done
  double epoch = 0;
  double loss = 0;
  double rows_per_second = 0;
  std::string rows_name;
  double seconds = 0;  // since step `first`
};

// Returns a number with four digits. Thread-safe.
std::string number_text(double value);

// Returns "[####......] step 120/300 | epoch 1.25 | loss 2.302 | 85.3 images/s
// | 00:01:05 | 00:01:37 left" on one line. The time left is estimated from the
// steps since `first`, and is missing before the first step. Thread-safe.
std::string to_text(const Progress& progress);

// ---- Evaluations

// An evaluation, and the training since the one before.
struct Evaluation {
  int64_t step = 0;   // steps done
  double losses = 0;  // sum over `steps`
  int64_t steps = 0;  // number of steps since the evaluation before
  // On the training data of these steps, while the weights change; without
  // items unless Options::train_score is set.
  Score train;
  Score test;
  // Of these steps, but those that a process before this one has run: wall
  // time, and CPU time of all threads of this process.
  double seconds = 0, cpu_seconds = 0;
  int64_t untimed_steps = 0;  // the number of those
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

// ---- Peak memory, for --plan

// The bytes of tensors at the peaks of steps: parameters, buffers, the state of
// the optimizer, gradients, and what waits for backwards. Not counted: what the
// process held before, besides the module, such as a data set, and workspaces
// of operators that are not tensors. Not thread-safe.
class StepMemory {
 public:
  // Counts all tensors on CPUs that are made from now on. Their allocator is
  // replaced for the rest of the process. Call it before the model is made.
  static void count_cpu_tensors();

  // `module`: the layers of this process, which have no gradients yet.
  // `planned`: empty for no report.
  StepMemory(const torch::nn::Module& module,
             std::vector<PlannedMemory> planned);

  // Begin and end the part of a step whose peak counts.
  void begin();
  void end();

  // Returns a line per device, without line ends: the largest peak so far, and
  // the prediction.
  std::vector<std::string> lines() const;

 private:
  struct Place {
    PlannedMemory planned;
    // Bytes in use at construction, without the module.
    int64_t before = 0;
    int64_t peak = 0;
  };
  std::vector<Place> places_;
};

// ---- Predicted and measured steps, for --plan

// The seconds and the memory of steps beside their prediction. Not thread-safe.
class PlanReport {
 public:
  // Returns the texts of all processes, by rank. All processes call it.
  using Gather =
      std::function<std::vector<std::string>(const std::string& mine)>;

  // `predicted`: seconds of forward and backward; 0 for no report.
  // `memory`: of this process.
  PlanReport(double predicted, StepMemory memory, Gather gather);

  // Begins forward and backward of a step.
  void begin();
  // Ends forward and backward, which took `seconds`. The first step, which
  // includes warming up, is left out. Returns the report after 10 more steps,
  // once: a line for the time, and one for each device of each process.
  std::optional<std::string> end(double seconds);

  // Returns the report of the steps so far if there was none yet, or nullopt if
  // there was or if there are no steps. All processes call it.
  std::optional<std::string> finish();

 private:
  double predicted_;
  StepMemory memory_;
  Gather gather_;
  bool is_first_ = true;
  std::vector<double> seconds_;
};

}  // namespace gpipe::train_program
