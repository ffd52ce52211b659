// The task of binary image segmentation.
#pragma once

#include <memory>

#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Returns a task that trains a model of DataKind::kMasks on a folder of images
// and masks (data/mask_folder.h), or on generated discs if there is no folder.
// An item of a Score is an image. The metric is the mean Dice coefficient of
// the images.
//
// Throws c10::ValueError if the options, the model and the data do not fit.
std::unique_ptr<Task> segmentation(const Options& options,
                                   std::shared_ptr<ModelSource> source);

// Returns the loss of logits for masks, both [rows, 1, height, width], on the
// device of the logits. An item is a pixel. Pixels with a negative mask do not
// count. Thread-safe.
WeightedLoss loss_of_masks(const at::Tensor& output, const at::Tensor& target);

// Returns the score of logits for masks, both [rows, 1, height, width]. Images
// with a negative mask do not count. The value is the sum of the images' Dice
// coefficients (data/dice.h). Thread-safe.
Score score_of_masks(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::train_program
