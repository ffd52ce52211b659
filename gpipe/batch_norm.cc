#include "gpipe/batch_norm.h"

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"

namespace gpipe {

DeferredBatchNorm::DeferredBatchNorm(
    std::shared_ptr<torch::nn::Module> module) {
  TORCH_CHECK_VALUE(module != nullptr, "the module is null");
  statistics_ = std::make_shared<internal::NormStatistics>(
      std::vector<std::shared_ptr<torch::nn::Module>>{std::move(module)});
}

DeferredBatchNorm::~DeferredBatchNorm() = default;
DeferredBatchNorm::DeferredBatchNorm(DeferredBatchNorm&&) noexcept = default;
DeferredBatchNorm& DeferredBatchNorm::operator=(DeferredBatchNorm&&) noexcept =
    default;

DeferredBatchNorm::Scope::Scope(
    std::shared_ptr<internal::NormStatistics> statistics)
    : statistics_(std::move(statistics)),
      scope_(std::make_unique<internal::NormScope>(statistics_.get())) {}

DeferredBatchNorm::Scope::~Scope() = default;

DeferredBatchNorm::Scope DeferredBatchNorm::observe() {
  statistics_->find_layers();
  return Scope(statistics_);
}

void DeferredBatchNorm::commit() { statistics_->commit(); }

void DeferredBatchNorm::discard() { statistics_->discard(); }

}  // namespace gpipe
