// The task of language modelling by characters.
#pragma once

#include <memory>

#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Returns a task that trains transformer on the characters of a file
// (data/text.h), or on generated sums if there is no file. An item of a loss or
// a Score is a character. The metric is the perplexity, exp(loss): a uniform
// guess among this number of characters would have the same loss.
//
// A row is a window of Options::length characters. With Options::bucket it is a
// sequence (data/sequences.h): a line of the file, or a sum. The last sequences
// are held out.
//
// Throws c10::ValueError if the options, the model and the data do not fit.
std::unique_ptr<Task> language(const Options& options,
                               std::shared_ptr<ModelSource> source);

// Return the loss and the score of logits [rows, length, vocabulary] for tokens
// [rows, length]. The loss is on the device of the logits. Tokens that are -100
// do not count. Thread-safe.
WeightedLoss loss_of_tokens(const at::Tensor& output, const at::Tensor& target);
Score score_of_tokens(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::train_program
