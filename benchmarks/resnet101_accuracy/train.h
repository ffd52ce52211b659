// The training of resnet101_accuracy, by the loop of the train program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/harness/table.h"
#include "benchmarks/resnet101_accuracy/plan.h"
#include "train_program/task.h"

namespace gpipe::benchmarks {

using train_program::Score;

// Return the mean loss and the top-1 error in percent of a classification.
inline double mean_loss(const Score& score) { return score.loss / score.items; }
inline double error_percent(const Score& score) {
  return 100 * (score.items - score.value) / score.items;
}

// The result of one epoch.
struct EpochResult {
  double rate = 0;    // the learning rate at the start of the epoch
  Score train;        // on the augmented images, while the weights change
  Score test;         // after the epoch
  Duration duration;  // of the training, without the test

  double samples_per_second() const {
    return train.items / duration.wall_seconds;
  }
};

// The result of a training.
struct AccuracyResult {
  std::string data;              // Task::data()
  std::vector<int64_t> balance;  // the balance that was used
  std::vector<EpochResult> epochs;
  // The checksum of parameters and buffers after the training. It is the same
  // for all balances with the same chunks and threads per partition.
  uint64_t checksum = 0;
};

// Trains the model of `task`, a classification, with the settings of `plan`,
// tests it after each epoch, logs the progress and returns the result. Without
// partitions it trains the plain model: one partition and one micro-batch that
// is not recomputed.
//
// SIGINT and SIGTERM end the process after the current step. Throws
// std::runtime_error if a loss or a gradient is not finite, and what
// train_program::run() throws. Threads: Only one call may run at a time, since
// the seed is set for the whole process.
AccuracyResult train_accuracy(const AccuracyPlan& plan,
                              train_program::Task& task);

// Returns the 64-bit FNV-1a hash of the tensors' names, dtypes, shapes and
// bytes, in the order of the names. Not a cryptographic hash. Tensors may be on
// any device. Thread-safe while no other thread changes the tensors.
uint64_t checksum(const std::map<std::string, at::Tensor>& tensors);

}  // namespace gpipe::benchmarks
