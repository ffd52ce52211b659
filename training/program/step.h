// The parts of a training step: number formats, data and optimizer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/base/threads.h"
#include "training/autocast.h"
#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// ---- Number formats

// A choice of number formats.
struct Precision {
  // The dtype for operators that autocast runs in lower precision.
  std::optional<at::ScalarType> autocast;
  // The dtype of the parameters and of everything that autocast does not cast.
  at::ScalarType parameters = at::kFloat;

  // Returns whether the loss must be scaled (see GradScaler).
  bool scales() const { return autocast == at::kHalf; }

  // Converts the floating-point parameters and buffers of `model` to
  // `parameters`.
  void convert(torch::nn::Sequential& model) const;

  // Converts the inputs of a mini-batch for the converted model, if they have
  // floating-point values.
  Sample prepare(Sample sample) const;

  // Returns an autocast scope for the calling thread and the pipeline's
  // workers, or null if autocast is not used.
  std::unique_ptr<AutocastScope> scope(c10::DeviceType device) const;
};

// Returns the precision for a name. float32 and bfloat16 use this dtype for
// everything. amp-float16 and amp-bfloat16 use autocast with parameters in
// float32. Throws c10::ValueError, which lists all names, for any other name.
Precision precision_of(const std::string& name);

// ---- Data

// The data of one step for one replica.
struct StepData {
  // One Sample that the pipeline splits; or, if `split`, one Sample for each
  // micro-batch.
  std::vector<Sample> parts;
  bool split = false;
  // The number of elements of the targets of all replicas: about the number of
  // items of Task::loss(). The same in all replicas.
  int64_t items = 0;
};

// The sizes of a step, and the replica whose share is loaded.
struct StepShare {
  int64_t batch = 0;       // rows of a mini-batch, over all replicas
  int64_t accumulate = 1;  // mini-batches of a step
  int64_t replica = 0;
  int64_t replicas = 1;
  int64_t microbatches = 1;  // of one replica; used if Task::has_parts()
};

// Returns the share of a replica in step `step`, counted from 0. The
// mini-batches of a step form one large mini-batch. Each replica has an equal
// number of consecutive rows. So the number of rows must be a multiple of the
// number of replicas.
//
// If Task::has_parts(), the replicas take the micro-batches in turn instead.
// Neighbours have similar lengths, and so have the shares.
StepData load_step(Task& task, const StepShare& share, int64_t step);

// Moves the tensors of `data` to pinned memory if `device` is an accelerator,
// so that a copy to it neither blocks the host nor waits there for earlier work
// of the device. Takes one more copy on the host: call it on the thread that
// loads.
void pin(StepData& data, const c10::Device& device);

// The results of load(first), load(first + 1), ..., load(last - 1) in order.
// While the caller uses one, another thread loads the next. Not thread-safe.
template <typename T>
class Prefetch {
 public:
  Prefetch(std::function<T(int64_t)> load, int64_t first, int64_t last)
      : load_(std::move(load)), next_(first), last_(last) {
    start();
  }
  // Waits for load().
  ~Prefetch() {
    internal::let_pass_at_exit(passes_);
    if (thread_.joinable()) thread_.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // Returns the next result, or throws what load() threw. Must not be called
  // after the last one.
  T next() {
    T result = loading_.get();
    start();
    return result;
  }

 private:
  void start() {
    if (thread_.joinable()) thread_.join();
    if (next_ >= last_) return;
    std::packaged_task<T()> task([this, k = next_++] {
      const internal::WorkScope work(passes_);
      return load_(k);
    });
    loading_ = task.get_future();
    thread_ = internal::background_thread(std::move(task));
  }

  std::function<T(int64_t)> load_;
  int64_t next_, last_;
  std::future<T> loading_;
  std::atomic<bool> passes_{false};
  std::thread thread_;
};

// ---- Optimizers

// Returns an optimizer for `parameters`. Parameters with at most
// one dimension (biases and the weights of normalization layers) form a group
// without weight decay, unless Options::decay_norms is true. The other
// group has the rest. An empty group is omitted if the other one is not empty.
//
// Throws c10::ValueError if the name is not sgd, adam, adamw, rmsprop or
// adagrad, or if a number is out of range.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<at::Tensor>& parameters);

}  // namespace gpipe::train_program
