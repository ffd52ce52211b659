#include "gpipe/runtime/autograd/grad_norm.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace gpipe::internal {
namespace {

bool is_maximum(double type) {
  return type == std::numeric_limits<double>::infinity();
}

// Returns all norms on the device of the first, as at::stack() would if they
// were all there.
at::Tensor gathered(const std::vector<at::Tensor>& norms) {
  const c10::Device home = norms.front().device();
  std::vector<at::Tensor> runs;
  for (std::size_t begin = 0, end = 0; begin < norms.size(); begin = end) {
    const c10::Device device = norms[begin].device();
    while (end < norms.size() && norms[end].device() == device) ++end;
    runs.push_back(
        at::stack(at::TensorList(norms).slice(begin, end - begin)).to(home));
  }
  return runs.size() == 1 ? runs.front() : at::cat(runs);
}

}  // namespace

at::Tensor norm_of(const at::Tensor& grad, double type) {
  if (grad.is_sparse()) {
    const at::Tensor values = grad.coalesce().values();
    // max() needs at least one element.
    return values.numel() > 0 ? norm_of(values, type)
                              : at::zeros({}, values.options());
  }
  return is_maximum(type) ? grad.abs().max() : grad.norm(type);
}

at::Tensor total_norm(std::vector<at::Tensor> norms, double type) {
  if (type == 0) return at::full({}, static_cast<double>(norms.size()));
  if (norms.size() == 1) return std::move(norms.front());
  const at::Tensor all = gathered(norms);
  return is_maximum(type) ? all.max() : all.norm(type);
}

void scale_grads(const std::vector<at::Tensor>& grads, const at::Tensor& total,
                 double max_norm) {
  if (std::isinf(max_norm)) return;
  const at::Tensor factor =
      at::clamp(max_norm / (total + 1e-6), std::nullopt, 1.0);
  std::unordered_map<c10::Device, at::Tensor> on_device;
  for (const at::Tensor& grad : grads) {
    at::Tensor& there = on_device[grad.device()];
    if (!there.defined()) {
      // The host need not wait: a copy from its memory that is not pinned has
      // read it when the call returns.
      there = factor.to(grad.device(), /*non_blocking=*/factor.is_cpu());
    }
    // A sparse tensor's mul_() leaves the tensor as it is, and so does
    // LibTorch's clip_grad_norm_().
    (grad.is_sparse() ? grad._values() : grad).mul_(there);
  }
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters,
                      double max_norm, double type) {
  const c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> grads, norms;
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    grads.push_back(parameter.grad().detach());
    norms.push_back(type == 0 ? at::Tensor() : norm_of(grads.back(), type));
  }
  if (grads.empty()) return 0;
  const at::Tensor total = total_norm(std::move(norms), type);
  scale_grads(grads, total, max_norm);
  return total.item<double>();
}

}  // namespace gpipe::internal
