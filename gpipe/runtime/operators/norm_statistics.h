// Deferred BatchNorm: running statistics of whole mini-batches, computed from
// micro-batches.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/runtime/operators/call_record.h"

namespace gpipe::internal {

// The statistics of one mini-batch that BatchNorm layers have collected. They
// give the running mean and variance that one forward of the whole mini-batch
// would give, independent of how it is split. Each micro-batch is still
// normalised by its own statistics.
//
// The layers are LibTorch's BatchNorm1d, 2d and 3d with running statistics,
// anywhere in the modules. A BatchNorm may be a typed member, which cannot be
// replaced by another layer, so no layer is replaced. Instead, while a
// NormScope is open, the operator is called without the running statistics, and
// the statistics that it returns for its input are kept.
//
// The idea is torchgpipe's DeferredBatchNorm. For n rows in pieces of n_i rows
// with mean m_i and variance v_i, the mean m is the mean of the m_i weighted by
// n_i. The unbiased variance is
//   (sum of n_i v_i + n_i (m_i - m)^2) / (n - 1).
//
// Not thread-safe.
class NormStatistics {
 public:
  explicit NormStatistics(
      std::vector<std::shared_ptr<torch::nn::Module>> modules);

  // Looks for the layers again, which may have been replaced. Does nothing
  // within a mini-batch.
  void find_layers();

  // Updates the running statistics at the end of a mini-batch, as LibTorch
  // does. With momentum f they become (1 - f) old + f new. Without momentum
  // they become the average over all mini-batches so far. num_batches_tracked
  // increases by one. Layers that were not called, or are in evaluation mode,
  // do not change.
  //
  // On accelerators, the function runs on the current streams, which must come
  // after those of the forwards. The host does not wait.
  void commit();

  // commit() in three parts. updates() returns new and old buffer values, and
  // changes nothing. forget() ends the mini-batch. make() writes all new
  // values; if it throws, the buffers have the values from before the
  // mini-batch.
  //
  // The number of operators does not depend on the number of layers: on an
  // accelerator, launching such small operators takes longer than their work.
  struct Update {  // buffers of one dtype and device
    std::vector<at::Tensor> buffers, values, before;
  };
  std::vector<Update> updates() const;
  void forget() noexcept;
  static void make(const std::vector<Update>& updates);
  // Writes the old values back. Call after make().
  static void undo(const std::vector<Update>& updates);

  // Drops a failed mini-batch. The buffers, including num_batches_tracked, are
  // as before it. If the function throws, it may be called again.
  void discard();

 private:
  friend class NormScope;

  struct Seen {
    at::Tensor mean, inverse_deviation;  // of one call
    double epsilon;
    int64_t count;  // values per channel
  };
  struct Layer {
    // Read the module's members at the time of the call.
    std::function<at::Tensor()> running_mean, running_var, batches;
    std::function<std::optional<double>()> momentum;
    int64_t calls = 0;    // of the operator
    int64_t counted = 0;  // by add_(1) to the counter
    std::vector<Seen> seen;

    // Returns by how much the counter has risen. Modules count also inputs for
    // which they do not call the operator; programs do not use add_().
    int64_t raised() const { return std::max(calls, counted); }
  };
  using Layers = std::vector<const Layer*>;

  // Return the layers that were called, by what makes one list of operators
  // impossible: the device and the dtypes of their buffers, and whether they
  // have a momentum. Layers with more calls come first.
  std::vector<Layers> called_groups() const;
  // Return the mean and the unbiased variance of all calls of each layer, one
  // after the other in one vector of doubles.
  static at::Tensor variances(const Layers& layers, at::Tensor* means);
  // Returns the update of num_batches_tracked; without buffers if the layers
  // have none.
  static Update count_update(const Layers& layers);

  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<Layer> layers_;
};

// While in scope on this thread, an operator runs that saves its running
// statistics for a backward that does not read them: a BatchNorm in training.
class UnreadStatistics {
 public:
  UnreadStatistics(at::Tensor mean, at::Tensor variance);
  ~UnreadStatistics();
  UnreadStatistics(const UnreadStatistics&) = delete;
  UnreadStatistics& operator=(const UnreadStatistics&) = delete;

  // Returns whether `tensor` is the mean or the variance of the innermost
  // scope of this thread. The backward reads what else the operator saves, such
  // as its input and its weight.
  static bool has(const at::Tensor& tensor);

 private:
  const at::Tensor mean_, variance_;
  const UnreadStatistics* const outer_;
};

// While in scope, BatchNorm layers of `statistics` in training mode do not
// change their running statistics on this thread. `statistics`: null for no
// effect. Other BatchNorm layers are those of the scope around this one. They
// do not change their running statistics in a second call, unless these are
// restored.
class NormScope {
 public:
  // Counts the layers' inputs, and records nothing else.
  explicit NormScope(NormStatistics* statistics) : NormScope(statistics, {}) {}
  // For a call of the layers of a cell. In the first call (`again` is false)
  // `call` is filled. In the second call the layers' inputs do not count.
  NormScope(NormStatistics* statistics, CallRecord& call, bool again)
      : NormScope(statistics, {&call, again}) {}
  // For a call of a function. In the first call the scope around this one, if
  // any, acts as without this scope. In the second call BatchNorm layers are
  // called as in the first one.
  NormScope(CallRecord& call, bool again);
  ~NormScope();
  NormScope(const NormScope&) = delete;
  NormScope& operator=(const NormScope&) = delete;

  // The following functions are for the interceptors of the operators.
  // current() returns the innermost scope of this thread, or null.
  static NormScope* current();
  // How a BatchNorm operator must be called.
  enum class How { kAsGiven, kOnCopies, kWithoutStatistics };
  struct NormCall {
    How how = How::kAsGiven;
    // For kWithoutStatistics: the scope whose end() ends the call, and the
    // layer's number in its statistics.
    NormScope* scope = nullptr;
    std::size_t layer = 0;
  };
  // Begins a call of the layer with these running statistics.
  NormCall begin(const at::Tensor& running_mean, const at::Tensor& running_var);
  // Ends a call that was made without statistics, and records those of its
  // input.
  void end(std::size_t layer, const at::Tensor& input, const at::Tensor& mean,
           const at::Tensor& inverse_deviation, double epsilon);
  // Reports that `counter` will be changed in place.
  void note_counter(const at::Tensor& counter);
  // Counts a call, by which `counter` has been raised.
  void count(const at::Tensor& counter);

 private:
  struct Call {
    CallRecord* record = nullptr;
    bool again = false;
    bool of_function = false;
  };
  NormScope(NormStatistics* statistics, const Call& call);

  NormStatistics* const statistics_;  // null in a call of a function
  const Call call_;
  std::size_t next_ = 0;  // of CallRecord::deferred, in a second call
  NormScope* const outer_;
  InterceptScope intercept_{kCellKey};
};

}  // namespace gpipe::internal
