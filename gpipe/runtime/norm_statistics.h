// Deferred BatchNorm: running estimates of mini-batches, from micro-batches.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/dispatch/interceptor.h"

namespace gpipe {

// What the BatchNorm layers of some modules have seen of a mini-batch, and
// what becomes of it: the running mean and variance that one forward of the
// whole mini-batch would have left, whatever it was split into. Each
// micro-batch is normalised by its own statistics all the same.
//
// The layers are LibTorch's BatchNorm1d, 2d and 3d with running statistics,
// anywhere in the modules, also as a typed member, which cannot be replaced by
// another layer. So nothing is: while a NormScope is open the operator is
// called without the running statistics, and what it returns as the statistics
// of its input is kept.
//
// The idea is torchgpipe's DeferredBatchNorm. Of n rows in pieces of n_i with
// mean m_i and variance v_i, the mean m is the mean of the m_i weighted by n_i,
// and the unbiased variance (sum of n_i v_i + n_i (m_i - m)^2) / (n - 1).
//
// Threads: used by one at a time.
class NormStatistics {
 public:
  explicit NormStatistics(
      const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  // The end of a mini-batch. As in LibTorch: with momentum f the estimates
  // become (1 - f) old + f new, without momentum the average over all
  // mini-batches so far; num_batches_tracked counts one. Layers that have
  // seen nothing (in eval mode, or not called) are left alone.
  //
  // On accelerators: on the current streams, which must come after those of
  // the forwards. The host does not wait.
  void commit();

  // commit() in three parts: what buffers become, and what they were before the
  // mini-batch, which changes nothing; that it is over; and that the buffers do
  // become so, all of them, or are as before it, if it throws.
  struct Update {
    at::Tensor buffer, value, before;
  };
  std::vector<Update> updates() const;
  void forget() noexcept;
  static void make(const std::vector<Update>& updates);
  // After the third part.
  static void undo(const std::vector<Update>& updates);

  // The mini-batch has failed: it leaves no trace. May be tried again if it
  // throws.
  void discard();

 private:
  friend class NormScope;

  struct Seen {
    at::Tensor mean, inverse_deviation;  // of one call
    double epsilon;
    int64_t count;  // values per channel
  };
  struct Layer {
    // Of the module, as they are at the time of asking.
    std::function<at::Tensor()> running_mean, running_var, batches;
    std::function<std::optional<double>()> momentum;
    int64_t calls = 0;  // each of which LibTorch counts as a mini-batch
    std::vector<Seen> seen;
  };

  std::vector<Layer> layers_;
};

// While in scope, BatchNorm layers of `statistics` that are in training mode
// leave their running statistics alone on this thread. `record`: what they see
// counts, which it does not when it is seen for the second time. Null: as if
// there were no scope.
class NormScope {
 public:
  NormScope(NormStatistics* statistics, bool record);
  ~NormScope();
  NormScope(const NormScope&) = delete;
  NormScope& operator=(const NormScope&) = delete;

  // For the interceptor of the operator. The innermost scope, or null.
  static NormScope* current();
  // A call of the layer with this running mean begins; its number, if it is
  // one of the statistics'.
  std::optional<std::size_t> begin(const at::Tensor& running_mean);
  // What has come of it.
  void end(std::size_t layer, const at::Tensor& input, const at::Tensor& mean,
           const at::Tensor& inverse_deviation, double epsilon);

 private:
  NormStatistics* const statistics_;
  const bool record_;
  NormScope* const outer_;
  InterceptScope intercept_{Interceptor::kCell};
};

}  // namespace gpipe
