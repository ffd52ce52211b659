// The task of image classification.
#pragma once

#include <memory>

#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Returns a task that trains a model of DataKind::kImages on the images of a
// folder (data/open.h), or on generated shapes if there is no folder. An item
// of a Score is an image. The metric is the accuracy in percent.
//
// Throws c10::ValueError if the options, the model and the data do not fit.
std::unique_ptr<Task> classification(const Options& options,
                                     std::shared_ptr<ModelSource> source);

// Returns the loss of logits [rows, classes] for labels [rows], on the device
// of the logits. An item is an image. Rows with the label -100 do not count.
// Thread-safe.
WeightedLoss loss_of_labels(const at::Tensor& output, const at::Tensor& target);

// Returns the score of logits [rows, classes] for labels [rows]. Rows whose
// label is negative do not count. Thread-safe.
Score score_of_labels(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::train_program
