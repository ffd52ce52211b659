// The tasks that make_task() chooses from, and what they share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training/program/model_source.h"
#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// ---- Parts of tasks

// Returns how many of `items` items are for testing, if `part` of them are.
// `name`: what they are, for the error: "images". Throws c10::ValueError if
// training or testing would have none.
int64_t held_out_of(int64_t items, double part, const std::string& name);

// Returns the number of mini-batches per epoch if the data has `batches` of
// them: all, or those of Options::limit. Throws c10::ValueError if the limit is
// negative or less than a mini-batch.
int64_t limited(int64_t batches, const Options& options);

// A shuffled order of the items for each epoch, cut into mini-batches of equal
// size. Each epoch skips the remainder of its own order, and what is above
// Options::limit. Not thread-safe.
class Epochs {
 public:
  // Uses the mini-batch size, the limit and the seed of `options`. Throws
  // c10::ValueError if the size is below 1 or above `items`, and what limited()
  // throws.
  Epochs(int64_t items, const Options& options);

  // Returns the number of mini-batches per epoch.
  int64_t batches() const { return batches_; }

  // The items of some rows of a mini-batch.
  struct Items {
    uint64_t seed = 0;  // the seed of the epoch
    std::vector<int64_t> indices;
  };
  // Returns the items of mini-batch `index`, counted from 0 over all epochs.
  Items at(int64_t index, Rows rows);

 private:
  int64_t items_, batch_, batches_;
  uint64_t seed_;
  int64_t epoch_ = -1;  // of order_
  std::vector<int64_t> order_;
};

// How good outputs are: see the functions of Task with these names.
struct Measures {
  WeightedLoss (*loss)(const at::Tensor& output, const at::Tensor& target);
  Score (*score)(const at::Tensor& output, const at::Tensor& target);
  const char* metric_name;
  double (*metric)(const Score& score);
};

// A task with a model of --model, options that fit it, and measures.
class ModelTask : public Task {
 public:
  ModelSource& source() const override { return *source_; }
  torch::nn::Sequential model() const override {
    return source_->make(sizes_of(options_));
  }

  WeightedLoss loss(const at::Tensor& output,
                    const at::Tensor& target) const override {
    return measures_.loss(output, target);
  }
  Score score(const at::Tensor& output,
              const at::Tensor& target) const override {
    return measures_.score(output, target);
  }
  std::string metric_name() const override { return measures_.metric_name; }
  double metric(const Score& score) const override {
    return measures_.metric(score);
  }

 protected:
  // `fitted`: from ModelSource::fitted().
  ModelTask(Options fitted, std::shared_ptr<ModelSource> source,
            const Measures& measures)
      : source_(std::move(source)),
        options_(std::move(fitted)),
        measures_(measures) {}

  const Options& options() const { return options_; }

  // Return the number of mini-batches of `rows` rows, the last of which may be
  // smaller, and the rows of one of them.
  int64_t batches_of(int64_t rows) const {
    return (rows + options_.batch - 1) / options_.batch;
  }
  Rows rows_of(int64_t batch, int64_t rows) const {
    const int64_t begin = batch * options_.batch;
    return {begin, std::min(begin + options_.batch, rows)};
  }

 private:
  const std::shared_ptr<ModelSource> source_;
  const Options options_;
  const Measures measures_;
};

// ---- Classification

// Returns a task that trains a model of DataKind::kImages on the images of a
// folder (open_images()), or on generated shapes if there is no folder. An item
// of a Score is an image. The metric is the accuracy in percent.
//
// Throws c10::ValueError if the options, the model and the data do not fit.
std::unique_ptr<Task> classification(const Options& options,
                                     std::shared_ptr<ModelSource> source);

// Returns an output in float32, or in float64 if it has that dtype. Losses are
// computed in it. Thread-safe.
at::Tensor in_full_precision(const at::Tensor& output);

// Returns the loss of logits [..., classes] for labels [...], such as tokens,
// on the device of the logits. An item is a label. The label -100 does not
// count. Throws c10::ValueError with the sizes if they differ. Thread-safe.
WeightedLoss loss_of_labels(const at::Tensor& output, const at::Tensor& target);

// Returns the score of logits [..., classes] for labels [...], both on the CPU.
// The value is the number of right labels. Negative labels do not count. Throws
// c10::ValueError with the sizes if they differ. Thread-safe.
Score score_of_labels(const at::Tensor& output, const at::Tensor& target);

// Returns the accuracy in percent of a score of labels.
double accuracy(const Score& score);

// ---- Segmentation

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
// coefficients (data/mask_folder.h). Thread-safe.
Score score_of_masks(const at::Tensor& output, const at::Tensor& target);

// ---- Language modelling by characters

// Returns a task that trains transformer on the characters of a file
// (data/text.h), or on generated sums if there is no file. An item of a loss or
// a Score is a character. The metric is the perplexity, exp(loss): a uniform
// guess among this number of characters would have the same loss.
//
// A row is a window of Options::length characters. With Options::bucket it is a
// sequence (data/text.h): a line of the file, or a sum. The last sequences
// are held out.
//
// Throws c10::ValueError if the options, the model and the data do not fit.
std::unique_ptr<Task> language(const Options& options,
                               std::shared_ptr<ModelSource> source);

// ---- A model from a file, with any inputs

// Returns whether the ending of a file says that it has named tensors:
// .safetensors, .pt or .pth.
bool has_named_tensors(const std::string& path);

// Returns a task that trains an exported program on a file of named tensors:
// one for each input of the program, by its name, and "target". Row i of all of
// them belongs together. Options::held_out of the rows, drawn by the seed, are
// for testing. Depending on the target the loss is
// - the cross entropy, if it has whole numbers and one dimension fewer than the
//   output: the index into the last dimension of the output, or -100 for none;
// - the mean squared error, if it has floating-point numbers and as many
//   dimensions as the output.
//
// Throws c10::ValueError if the file cannot be read, if it lacks a tensor, if
// dtypes or sizes do not fit the program, or if the options do not fit.
std::unique_ptr<Task> tensor_rows(const Options& options,
                                  std::shared_ptr<ModelSource> source);

}  // namespace gpipe::train_program
