// A task, which is a model, data, a loss and a metric, and its choice by model
// and data.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/pipeline_module.h"
#include "models/named.h"
#include "training/program/model_source.h"
#include "training/program/options.h"

namespace gpipe::train_program {

// ---- Tasks

// A range of the rows of a mini-batch, without `end`.
struct Rows {
  int64_t begin = 0, end = 0;
};

// Some rows of a mini-batch. All tensors have the same number of rows.
struct Sample {
  at::Tensor input, target;  // on the CPU
  // The second, third, ... input of a model that takes a vector of tensors.
  std::vector<at::Tensor> further = {};

  // Calls `use` with the input that the model takes, a tensor or a vector, and
  // returns its result.
  template <typename Use>
  auto with_input(const Use& use) const {
    if (further.empty()) return use(input);
    std::vector<at::Tensor> inputs{input};
    inputs.insert(inputs.end(), further.begin(), further.end());
    return use(inputs);
  }
};

// Returns `sample` with its inputs changed by `change`, from a tensor to a
// tensor. Undefined ones stay.
template <typename Change>
Sample with_inputs_changed(Sample sample, const Change& change) {
  if (sample.input.defined()) sample.input = change(sample.input);
  for (at::Tensor& each : sample.further) each = change(each);
  return sample;
}

// Sums over items (images or characters). Scores can be added.
struct Score {
  double items = 0;
  double loss = 0;
  double value = 0;  // meaning depends on Task::metric()

  Score& operator+=(const Score& other) {
    items += other.items;
    loss += other.loss;
    value += other.value;
    return *this;
  }
};

// A task that a run trains.
//
// Threads: train_batch() and train_parts() are called by one thread at a time,
// and so is test_batch(). loss() is called by any number of threads. These
// three groups may run at the same time.
class Task {
 public:
  virtual ~Task() = default;

  // Returns the model that --model names. Its kind of data is that of the task.
  virtual ModelSource& source() const = 0;

  // Returns a model with weights drawn from LibTorch's default generator, or
  // with those of a file. Called at most once.
  virtual torch::nn::Sequential model() const = 0;

  // Returns one line that describes the data: which items, and how many. A run
  // checkpoint contains it, and the resumed run must have the same line.
  virtual std::string data() const = 0;

  // Returns a checksum of the data: of names and labels in order, or of the
  // content if it is loaded. Does not depend on the folder. 0 for generated
  // data.
  virtual uint32_t checksum() const = 0;

  // Returns the byte that each token of a text stands for; "" if the data is no
  // text.
  virtual std::string vocabulary() const { return {}; }

  // Returns the name of a row in the plural: "images".
  virtual std::string rows_name() const = 0;

  // Return the number of mini-batches per epoch, at least 1, and of the test
  // set. All training mini-batches have the same number of rows.
  virtual int64_t train_batches() const = 0;
  virtual int64_t test_batches() const = 0;

  // Returns some rows of mini-batch `index`, counted from 0 over all epochs.
  // The result depends only on the seed and the arguments, so that a resumed
  // run sees the same data. Throws c10::ValueError, which names the file, if a
  // file is broken.
  virtual Sample train_batch(int64_t index, Rows rows) = 0;
  virtual Sample test_batch(int64_t index) = 0;

  // Returns whether training uses train_parts() instead of train_batch(). Then
  // the pipeline does not split rows.
  virtual bool has_parts() const { return false; }
  // Returns some rows of the training data in `count` micro-batches, which may
  // have different shapes. `rows`: counted from 0 over all epochs, at least
  // `count`; mini-batch i begins at row i * Options::batch. The result depends
  // only on the seed and the arguments. Called only if has_parts().
  virtual std::vector<Sample> train_parts(Rows /*rows*/, int64_t /*count*/) {
    return {};
  }

  // Returns the sum of the losses of a micro-batch over its items (characters,
  // pixels or images) and the number of these items, on the output's device.
  // Items with the target -100, and pixels with a negative mask, do not count.
  virtual WeightedLoss loss(const at::Tensor& output,
                            const at::Tensor& target) const = 0;

  // Returns the score of some rows. Both tensors are on the CPU.
  virtual Score score(const at::Tensor& output,
                      const at::Tensor& target) const = 0;

  // Return the name of the metric, for example "accuracy", and its value for a
  // sum of scores.
  virtual std::string metric_name() const = 0;
  virtual double metric(const Score& score) const = 0;

  // Returns lines about files that were skipped since the last call.
  // Thread-safe.
  virtual std::vector<std::string> take_warnings() { return {}; }
};

// ---- The choice of a task

// Returns the kind of data at a path. A file is a text, unless it ends in
// .safetensors, .pt or .pth: these have named tensors. A folder that contains
// images/ and masks/ holds images with masks. Any other folder holds labelled
// images. Throws c10::ValueError if the path does not exist or cannot be read.
models::DataKind data_kind_at(const std::string& path);

// Loads the libraries of Options::operators, and returns the task for a model
// and its data. Throws c10::ValueError if there is no such model, if it cannot
// be trained on this data (the text says which models can), or if the options
// do not fit, and std::invalid_argument if a library cannot be loaded.
std::unique_ptr<Task> make_task(const Options& options);

}  // namespace gpipe::train_program
