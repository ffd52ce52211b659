// The trainings of resnet101_accuracy and their results as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/table.h"
#include "benchmarks/resnet101_accuracy/rows.h"
#include "training/program/options.h"
#include "training/program/run.h"
#include "training/program/task.h"

namespace gpipe::benchmarks {

// A row of the papers with its options and its result.
struct AccuracyOutcome {
  AccuracyRow row;
  train_program::Options options;
  std::string error;             // the reason why there is no result
  std::vector<int64_t> balance;  // the balance that was used
  std::vector<train_program::Evaluation> epochs;
  // The checksum of parameters and buffers after the training. It is the same
  // for all balances with the same chunks and threads.
  uint32_t checksum = 0;
};

// Trains the model of `task`, a classification, with the options of `outcome`,
// tests it after each epoch, logs the progress and sets the result.
//
// SIGINT and SIGTERM end the process after the current step. Throws
// std::runtime_error if a loss or a gradient is not finite, and what
// train_program::run() throws. Threads: Only one call may run at a time, since
// the seed is set for the whole process.
void train_row(train_program::Task& task, AccuracyOutcome& outcome);

// Returns the table: a row per outcome with its results after the last epoch
// and the papers' figures. Samples per second are the median over the epochs.
// The first epoch counts only if there is no other one.
Table accuracy_rows_table(const std::vector<AccuracyOutcome>& outcomes);

}  // namespace gpipe::benchmarks
