// A text, and how it goes on.
#pragma once

#include <memory>

#include "trainer/options.h"
#include "trainer/task.h"

namespace gpipe::trainer {

// transformer on the characters of a file (data/text.h), or on drawn sums. Rows
// are windows of TaskOptions::length characters, items are characters, the
// metric is the perplexity: the number of characters among which a guess would
// be as good.
//
// c10::ValueError for options and data that do not fit.
std::unique_ptr<Task> language(const TaskOptions& options);

// Logits [rows, length, vocabulary] and tokens [rows, length].
// Threads: pure function.
Score score_of_tokens(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::trainer
