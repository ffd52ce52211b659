// Images and what of them is inside of something.
#pragma once

#include <memory>

#include "trainer/options.h"
#include "trainer/task.h"

namespace gpipe::trainer {

// unet on a folder of images and masks (data/mask_folder.h), or on drawn discs.
// Items are images, the metric is the mean of their Dice coefficients.
//
// c10::ValueError for options and data that do not fit.
std::unique_ptr<Task> segmentation(const TaskOptions& options);

// Logits and masks [rows, 1, height, width]; an image whose mask is negative
// does not count. Dice's coefficient of what has logits above 0, A, and what is
// inside, B, is 2 |A and B| / (|A| + |B|), or 1 if both are empty.
// Threads: pure function.
Score score_of_masks(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::trainer
