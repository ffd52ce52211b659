// Images and what is on them.
#pragma once

#include <cstdint>
#include <memory>

#include "trainer/options.h"
#include "trainer/task.h"

namespace gpipe::trainer {

// resnet50, resnet101 or amoebanetd on the images of a folder
// (data/open.h), or on drawn shapes. Items are images, the metric is their
// accuracy in percent.
//
// c10::ValueError for options and data that do not fit.
std::unique_ptr<Task> classification(const TaskOptions& options);

// Logits [rows, classes] and labels [rows]; those below 0 do not count.
// Threads: pure function.
Score score_of_labels(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::trainer
