#include "training/program/token_sampler.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace gpipe::train_program {

TokenSampler::TokenSampler(const SamplingOptions& options, uint64_t seed)
    : options_(options), random_(seed) {
  TORCH_CHECK_VALUE(
      options.temperature >= 0 && std::isfinite(options.temperature),
      "--temperature=", options.temperature, ": must be 0 or more");
  TORCH_CHECK_VALUE(options.top_k >= 0, "--top_k=", options.top_k,
                    ": must be 0 (all tokens) or more");
  TORCH_CHECK_VALUE(options.top_p > 0 && options.top_p <= 1,
                    "--top_p=", options.top_p,
                    ": must be above 0 and at most 1 (all tokens)");
}

int64_t TokenSampler::next(const at::Tensor& logits) {
  const at::Tensor values = logits.to(at::kDouble).contiguous();
  const double* const value = values.const_data_ptr<double>();
  const std::size_t size = values.numel();
  double most = -INFINITY;
  std::size_t best = 0;
  bool is_nan = false;
  for (std::size_t k = 0; k < size; ++k) {
    is_nan = is_nan || std::isnan(value[k]);
    if (value[k] > most) {
      most = value[k];
      best = k;
    }
  }
  TORCH_CHECK_VALUE(!is_nan && std::isfinite(most), "the largest of ", size,
                    " logits is ", is_nan ? NAN : most,
                    "; check the weights, or use another --precision");
  if (options_.temperature == 0) return static_cast<int64_t>(best);

  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  if (options_.top_k > 0 || options_.top_p < 1) {
    const auto kept =
        options_.top_k > 0 ? std::min<std::size_t>(options_.top_k, size) : size;
    std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                      [&](std::size_t a, std::size_t b) {
                        return value[a] != value[b] ? value[a] > value[b]
                                                    : a < b;
                      });
    order.resize(kept);
  }
  std::vector<double> sums;  // of the probabilities, times a factor
  double sum = 0;
  for (const std::size_t k : order) {
    sum += std::exp((value[k] - most) / options_.temperature);
    sums.push_back(sum);
  }
  if (options_.top_p < 1) {
    const auto end =
        std::lower_bound(sums.begin(), sums.end(), options_.top_p * sum);
    sums.resize(std::min(sums.size(), std::size_t(end - sums.begin()) + 1));
  }
  const double drawn = random_.uniform() * sums.back();
  const auto found = std::upper_bound(sums.begin(), sums.end(), drawn);
  const auto place = std::min(found - sums.begin(),
                              static_cast<std::ptrdiff_t>(sums.size()) - 1);
  return static_cast<int64_t>(order[place]);
}

}  // namespace gpipe::train_program
