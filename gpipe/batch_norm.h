// BatchNorm that counts by mini-batch where a model is run in micro-batches
// without a pipeline. In a pipeline: GPipeOptions::deferred_batch_norm(true).
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace gpipe {

class NormStatistics;
class NormScope;

// BatchNorm changes its running estimates with every forward, so that a model
// that accumulates gradients over micro-batches gets those of micro-batches,
// weighted towards the last. With this they become what one forward of the
// whole mini-batch would leave:
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
// Normalising goes on by micro-batch. All of LibTorch's BatchNorm1d, 2d and 3d
// in the module are meant, nested ones and typed members included; those in
// eval mode, or without running statistics, behave as ever. The module is not
// changed and can be saved, copied and printed as before.
//
// Shapes: those that the layers take, [rows, channels, ...]; pieces may have
// any number of rows. The variance is the unbiased one, and without momentum
// the estimates are the averages over all mini-batches, as in LibTorch. The
// idea is torchgpipe's DeferredBatchNorm (of its variance, which is biased, it
// is not); pieces are combined by the formula of Chan, Golub and LeVeque
// (1983).
//
// Threads: one at a time.
class DeferredBatchNorm {
 public:
  // c10::ValueError if `module` is null. Layers that are added to it later
  // are not seen.
  explicit DeferredBatchNorm(std::shared_ptr<torch::nn::Module> module);
  ~DeferredBatchNorm();
  DeferredBatchNorm(DeferredBatchNorm&&) noexcept;
  DeferredBatchNorm& operator=(DeferredBatchNorm&&) noexcept;

  // Forwards on this thread, while the scope lives, are micro-batches of the
  // mini-batch.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class DeferredBatchNorm;
    explicit Scope(NormStatistics* statistics);
    std::unique_ptr<NormScope> scope_;
  };
  // Begins a mini-batch, or goes on with it, until the scope ends.
  [[nodiscard]] Scope observe();

  // The end of a mini-batch: the running estimates take it in. Nothing happens
  // if there was no micro-batch.
  void commit();

  // Forgets the micro-batches since the last commit, also in
  // num_batches_tracked.
  void discard();

 private:
  std::unique_ptr<NormStatistics> statistics_;
};

}  // namespace gpipe
