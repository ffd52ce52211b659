// The rows of the papers' tables about accuracy, their trainings by the train
// program, and the results as a table.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/table.h"
#include "training/program/options.h"
#include "training/program/run.h"
#include "training/program/task.h"

namespace gpipe::benchmarks {

// One row of a paper's table.
struct AccuracyRow {
  Experiment experiment;           // its chunks have equal sizes
  std::optional<int64_t> devices;  // the number of devices in the paper
  std::optional<double> rate;      // the learning rate after the warm-up
  std::string left_out;            // the reason not to train it; "" if it is
};

// The rows at one size: as published, or reduced.
struct AccuracyTable {
  std::vector<AccuracyRow> rows;
  int64_t epochs = 0;
  int64_t image_size = 0;  // height and width
  double warmup_epochs = 0;
  // The learning rate at the start of the warm-up. None: a tenth of the row's
  // rate.
  std::optional<double> warmup_rate;
};

// Returns the names of the columns of Experiment::published in these rows: the
// top-1 error and its deviation over runs, both in percent; samples per second;
// and their ratio to those of dataparallel-256.
const std::vector<std::string>& accuracy_columns();

// Returns the rows for ResNet-101 on ImageNet of torchgpipe's benchmark
// resnet101-accuracy (Kim et al., arXiv 2004.09910), including the
// data-parallel rows that its table compares pipelines with, and the rows for
// AmoebaNet-B of GPipe's table 4 (arXiv 1811.06965).
//
// `small`: sizes for a few CPU cores, with an eighth of each mini-batch, a
// hundredth of each learning rate and 4 to 8 micro-batches.
AccuracyTable accuracy_table(bool small);

// Returns the options that train a row: those of `flags`, except that the row
// determines the options for which `given` returns false. `given(name)`:
// whether the flag --name is on the command line. `steps`: per epoch, for the
// learning rates; 0 if they are not needed yet.
//
// A row without partitions, the plain model, is one partition with one
// micro-batch that is not recomputed. Throws std::invalid_argument if the
// micro-batches would have unequal sizes, which BatchNorm would see.
train_program::Options row_options(
    const AccuracyTable& table, const AccuracyRow& row,
    train_program::Options flags,
    const std::function<bool(const std::string& name)>& given, int64_t steps);

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
