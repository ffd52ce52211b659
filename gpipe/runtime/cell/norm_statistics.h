// Deferred BatchNorm: running statistics of whole mini-batches, computed from
// micro-batches.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/dispatch/interceptor.h"

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
      const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

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
  struct Update {
    at::Tensor buffer, value, before;
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
    int64_t calls = 0;  // LibTorch counts each as a mini-batch
    std::vector<Seen> seen;
  };

  std::vector<Layer> layers_;
};

// While in scope, BatchNorm layers of `statistics` in training mode do not
// change their running statistics on this thread. `statistics`: null for no
// effect. `record`: whether the layers' inputs count; false in a recompute,
// where they come a second time.
class NormScope {
 public:
  NormScope(NormStatistics* statistics, bool record);
  ~NormScope();
  NormScope(const NormScope&) = delete;
  NormScope& operator=(const NormScope&) = delete;

  // The following functions are for the interceptor of the operator. current()
  // returns the innermost scope of this thread, or null.
  static NormScope* current();
  // Begins a call of the layer with this running mean. Returns the layer's
  // number, or nullopt if it is none of the statistics' layers.
  std::optional<std::size_t> begin(const at::Tensor& running_mean);
  // Ends the call and records the statistics of its input.
  void end(std::size_t layer, const at::Tensor& input, const at::Tensor& mean,
           const at::Tensor& inverse_deviation, double epsilon);

 private:
  NormStatistics* const statistics_;
  const bool record_;
  NormScope* const outer_;
  InterceptScope intercept_{Interceptor::kCell};
};

}  // namespace gpipe::internal
