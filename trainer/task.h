// What is trained: a model, data, a loss, and how good it is.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::trainer {

// Of a mini-batch: `begin` to `end`, but for the last.
struct Rows {
  int64_t begin = 0, end = 0;
};

struct Sample {
  at::Tensor input, target;  // on the CPU, with a row for each other's
};

// Sums over items (images, or characters), which may be added up.
struct Score {
  double items = 0;
  double loss = 0;
  double value = 0;  // whatever metric() makes of it

  Score& operator+=(const Score& other) {
    items += other.items;
    loss += other.loss;
    value += other.value;
    return *this;
  }
};

// Threads: train_batch() is called by one at a time, test_batch() by one at a
// time, loss() by any number, and all of these at the same time.
class Task {
 public:
  virtual ~Task() = default;

  // Its weights come from LibTorch's default generator. Called once, maybe.
  virtual torch::nn::Sequential model() const = 0;

  // Which images, how many, ...: a line. A run that goes on wants the same.
  virtual std::string data() const = 0;

  // Of what that is: names and labels, in order, or what is read already. The
  // same for a copy in another place. 0 for what is drawn.
  virtual uint32_t checksum() const = 0;

  // What a row is called, "images".
  virtual std::string rows_name() const = 0;

  // Mini-batches per epoch, at least 1, and of the test. A mini-batch of
  // training has the same number of rows each time.
  virtual int64_t train_batches() const = 0;
  virtual int64_t test_batches() const = 0;

  // Some rows of mini-batch 0, 1, 2, ..., over all epochs: a function of the
  // seed and the number, so that a run that goes on sees what it would have
  // seen. c10::ValueError, naming the file, for one that is broken.
  virtual Sample train_batch(int64_t index, Rows rows) = 0;
  virtual Sample test_batch(int64_t index) = 0;

  // Of the rows of a micro-batch, the mean. On the output's device.
  virtual at::Tensor loss(const at::Tensor& output,
                          const at::Tensor& target) const = 0;

  // Both on the CPU.
  virtual Score score(const at::Tensor& output,
                      const at::Tensor& target) const = 0;

  // "accuracy", and its value for what has been summed up.
  virtual std::string metric_name() const = 0;
  virtual double metric(const Score& score) const = 0;

  // What there was to say, in lines, since the last call: files that are left
  // out. Threads: any.
  virtual std::vector<std::string> take_warnings() { return {}; }
};

}  // namespace gpipe::trainer
