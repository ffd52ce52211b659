// BatchNorm statistics per mini-batch for a model that is run in
// micro-batches without a pipeline. For a pipeline use
// GPipeOptions::deferred_batch_norm(true).
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace gpipe {

namespace internal {
class NormStatistics;
class NormScope;
}  // namespace internal

// Collects the running statistics of BatchNorm layers over a mini-batch.
// BatchNorm changes its running estimates in every forward. A model that
// accumulates gradients over micro-batches thus gets estimates of
// micro-batches, weighted towards the last one. With this class the estimates
// become the same as after one forward of the whole mini-batch, if that calls
// each layer once:
//
//   gpipe::DeferredBatchNorm deferred(model.ptr());
//   for (auto& batch : *loader) {
//     {
//       auto scope = deferred.observe();
//       for (auto& piece : batch.data.chunk(4)) {
//         loss_of(model->forward(piece)).backward();
//       }
//     }
//     deferred.commit();
//     optimizer.step();
//   }
//
// Each micro-batch is still normalised by its own statistics. The class acts on
// all BatchNorm1d, 2d and 3d layers of LibTorch in the module, including nested
// ones and typed members. Layers in eval mode, or without running statistics,
// behave as usual. The module itself is not changed and can be saved, copied
// and printed as before.
//
// Shapes: [rows, channels, ...], as the layers take. Micro-batches may have
// different numbers of rows; each must have at least two values per channel,
// which LibTorch demands in training. As in LibTorch, the variance is the
// unbiased one, and without momentum the estimates are the averages over all
// mini-batches. The idea is torchgpipe's DeferredBatchNorm, which uses the
// biased variance instead. Micro-batches are combined by the formula of Chan,
// Golub and LeVeque (1983).
//
// Not thread-safe.
class DeferredBatchNorm {
 public:
  // Throws c10::ValueError if `module` is null. Layers that are added or
  // replaced within a mini-batch are ignored until the next one.
  explicit DeferredBatchNorm(std::shared_ptr<torch::nn::Module> module);
  ~DeferredBatchNorm();
  DeferredBatchNorm(DeferredBatchNorm&&) noexcept;
  DeferredBatchNorm& operator=(DeferredBatchNorm&&) noexcept;

  // A scope on one thread. Forwards on this thread during the scope are
  // micro-batches of the current mini-batch.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class DeferredBatchNorm;
    explicit Scope(std::shared_ptr<internal::NormStatistics> statistics);
    const std::shared_ptr<internal::NormStatistics> statistics_;
    std::unique_ptr<internal::NormScope> scope_;
  };
  // Begins a mini-batch, or continues it, until the returned scope ends. What
  // is observed in a scope that outlives this object is lost.
  [[nodiscard]] Scope observe();

  // Ends the mini-batch: updates the running estimates with its statistics.
  // Does nothing if there was no micro-batch.
  void commit();

  // Drops the micro-batches since the last commit. `num_batches_tracked` does
  // not count them either.
  void discard();

 private:
  std::shared_ptr<internal::NormStatistics> statistics_;
};

}  // namespace gpipe
