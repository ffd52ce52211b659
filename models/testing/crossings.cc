#include "models/testing/crossings.h"

#include "gpipe/summary.h"

namespace gpipe::models::testing {

Crossings crossings_of(const torch::nn::Sequential& model,
                       const std::vector<int64_t>& balance,
                       const torch::Tensor& input) {
  Crossings sum;
  for (const CrossingSummary& each : summary(model, balance, input).crossings) {
    (each.skip ? sum.skips : sum.boundary) += *each.bytes;
  }
  return sum;
}

}  // namespace gpipe::models::testing
