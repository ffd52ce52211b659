#include "training/data/dice.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace gpipe::data {

at::Tensor dice(const at::Tensor& logits, const at::Tensor& mask) {
  const at::Tensor found = logits.gt(0).to(at::kDouble).flatten(1);
  const at::Tensor inside = mask.to(found).flatten(1);
  const at::Tensor both = (found * inside).sum(1);
  const at::Tensor sum = found.sum(1) + inside.sum(1);
  return at::where(sum > 0, 2 * both / sum, at::ones_like(sum));
}

}  // namespace gpipe::data
