// The training of resnet101_accuracy.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "benchmarks/harness/table.h"
#include "benchmarks/harness/trainee.h"
#include "benchmarks/resnet101_accuracy_plan.h"
#include "data/image_dataset.h"

namespace gpipe::benchmarks {

// Sums over images.
struct Score {
  double loss = 0;
  int64_t wrong = 0;
  int64_t images = 0;

  double mean_loss() const { return loss / static_cast<double>(images); }
  // Top-1.
  double error_percent() const {
    return 100 * static_cast<double>(wrong) / static_cast<double>(images);
  }
};

struct EpochResult {
  double rate = 0;    // of learning, at its beginning
  Score train;        // of the augmented images, while the weights change
  Score test;         // after it
  Duration duration;  // of the training

  double samples_per_second() const {
    return static_cast<double>(train.images) / duration.wall_seconds;
  }
};

struct AccuracyResult {
  std::vector<int64_t> balance;  // that was used
  std::vector<EpochResult> epochs;
  // Of parameters and buffers at the end: equal for all balances where chunks
  // and threads per partition are.
  uint64_t checksum = 0;
};

// A new model for images of so many classes, with random weights.
using ImageModel = std::function<torch::nn::Sequential(int64_t classes)>;

// Trains `model` as `plan` says, and tests it after each epoch. Without
// partitions it is the plain model: in one, of one micro-batch, which is not
// recomputed. Tells the progress.
//
// std::invalid_argument for a mini-batch of more images than an epoch has;
// std::runtime_error for a loss that is not finite.
AccuracyResult train_accuracy(const AccuracyPlan& plan, const ImageModel& model,
                              const data::Split& split, Balancer* balancer);

}  // namespace gpipe::benchmarks
