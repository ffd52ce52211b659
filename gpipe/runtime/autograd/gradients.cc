#include "gpipe/runtime/autograd/gradients.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <unordered_map>

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {
namespace {

// Returns whether `tensor` can be changed in place without a visible effect:
// there is no other holder, no view of its memory, and no overlapping elements,
// as in the expanded gradient of a sum.
bool is_ours(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.use_count() != 1 ||
      !tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  // A view, such as the transposed gradient of a Linear's weight, holds its
  // base tensor.
  const bool own_base = tensor.is_view() && tensor._base().use_count() == 1;
  return tensor.storage().use_count() == (own_base ? 2 : 1);
}

// Returns the elements that a sparse tensor has; other tensors as they are.
at::Tensor elements_in(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor._values() : tensor;
}

}  // namespace

void GradSum::add(int64_t leaf, at::Tensor grad) {
  if (!grad.defined()) return;
  if (leaf >= std::ssize(sums_)) sums_.resize(leaf + 1);
  Sum& sum = sums_[leaf];
  if (!sum.tensor.defined()) {
    sum.own = is_ours(grad);
    sum.tensor = std::move(grad);
    return;
  }
  // No other code holds these tensors, so autograd does not need to track the
  // additions (one per leaf and cell).
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (sum.own && grad.layout() == at::kStrided) {
    sum.tensor.add_(grad);
  } else {
    // LibTorch can add a sparse tensor to a dense one, but not the reverse.
    sum.tensor =
        sum.tensor.is_sparse() ? grad.add(sum.tensor) : sum.tensor.add(grad);
    sum.own = is_ours(sum.tensor);
  }
}

void GradSum::add(int64_t microbatch, int64_t leaf, at::Tensor grad) {
  label_memory(grad, MemoryKind::kGradient);
  if (order_ == SumOrder::kByMicrobatch && microbatch != turn_) {
    early_[microbatch].grads.emplace_back(leaf, std::move(grad));
    return;
  }
  add(leaf, std::move(grad));
}

void GradSum::finish(int64_t microbatch) {
  --left_;
  if (order_ == SumOrder::kAsTheyCome) return;
  early_[microbatch].finished = true;
  for (auto first = early_.begin();
       first != early_.end() && first->first == turn_;) {
    for (auto& [leaf, grad] : first->second.grads) {
      add(leaf, std::move(grad));
    }
    first->second.grads.clear();
    if (!first->second.finished) return;
    first = early_.erase(first);
    ++turn_;
  }
}

bool GradSum::last(int64_t microbatch) const {
  if (left_ != 1) return false;
  return order_ == SumOrder::kAsTheyCome ||
         (microbatch == turn_ && early_.empty());
}

at::Tensor GradSum::take(int64_t leaf) {
  return leaf < std::ssize(sums_) ? std::move(sums_[leaf].tensor)
                                  : at::Tensor();
}

at::Tensor divide(at::Tensor grad, double divisor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (is_ours(grad)) return grad.div_(divisor);
  return grad.div(divisor);
}

void separate(std::vector<at::Tensor>& grads) {
  const c10::NoGradGuard no_grad;
  // Bytes of memory that gradients take, by their beginning: no two overlap.
  using Place = std::pair<const c10::StorageImpl*, std::size_t>;
  std::map<Place, std::size_t> ends;
  for (at::Tensor& grad : grads) {
    if (!grad.defined()) continue;
    const at::Tensor elements = elements_in(grad);
    if (!elements.has_storage() || elements.numel() == 0) continue;
    const auto* const memory = elements.storage().unsafeGetStorageImpl();
    const std::size_t begin =
        static_cast<std::size_t>(elements.storage_offset()) *
        elements.itemsize();
    const std::size_t end =
        begin + at::detail::computeStorageNbytes(
                    elements.sizes(), elements.strides(), elements.itemsize());
    const auto next = ends.lower_bound({memory, end});
    const bool is_shared = next != ends.begin() &&
                           std::prev(next)->first.first == memory &&
                           std::prev(next)->second > begin;
    if (is_shared) {
      grad = grad.clone();
      label_memory(grad, MemoryKind::kGradient);
    } else {
      ends.emplace(Place(memory, begin), end);
    }
  }
}

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

void check_max_norm(double max_norm) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_() has max_norm ", max_norm,
                    "; give 0 or more, or infinity to scale nothing");
}

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
    elements_in(grad).mul_(there);
  }
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters,
                      double max_norm, double type) {
  check_max_norm(max_norm);
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

namespace {

// Number of gradients that the error names. From the first bad gradient on, all
// later gradients of a cell may be bad too.
constexpr std::size_t kNamed = 8;

[[noreturn]] void fail(const std::string& text) {
  throw NonFiniteError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                       text);
}

// Returns the elements of `tensor` that may be not finite: of a sparse tensor
// those that it has. Undefined if there are none.
at::Tensor numbers_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return {};
  const at::Tensor all = elements_in(tensor);
  const bool has_some = all.numel() > 0 && all.layout() == at::kStrided &&
                        (all.is_floating_point() || all.is_complex());
  return has_some ? all : at::Tensor();
}

std::optional<std::string> describe(int64_t elements, int64_t finite,
                                    int64_t nan) {
  if (finite == elements) return std::nullopt;
  const int64_t inf = elements - finite - nan;
  const std::string of = " of " + std::to_string(elements) +
                         (elements == 1 ? " element is " : " elements are ");
  if (nan == 0) return std::to_string(inf) + of + "inf";
  std::string text = std::to_string(nan) + of + "nan";
  if (inf > 0) text += " and " + std::to_string(inf) + " inf";
  return text;
}

}  // namespace

std::optional<std::string> non_finite_part(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const at::Tensor numbers = numbers_of(tensor);
  if (!numbers.defined()) return std::nullopt;
  const auto finite = at::isfinite(numbers).sum().item<int64_t>();
  if (finite == numbers.numel()) return std::nullopt;
  return describe(numbers.numel(), finite,
                  at::isnan(numbers).sum().item<int64_t>());
}

void check_finite(const at::Tensor& tensor, const std::string& what) {
  if (const auto part = non_finite_part(tensor)) {
    fail(what + " is not finite: " + *part);
  }
}

void check_finite(const std::vector<at::Tensor>& tensors,
                  const std::string& what) {
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    check_finite(tensors[k],
                 tensors.size() == 1
                     ? what
                     : "element " + std::to_string(k) + " of " + what);
  }
}

void NonFiniteGradients::watch(const at::Tensor& grad,
                               std::function<std::string()> of) {
  const c10::NoGradGuard no_grad;
  const at::Tensor numbers = numbers_of(grad);
  if (!numbers.defined()) return;
  seen_.push_back({std::move(of), numbers.numel(), at::isfinite(numbers).sum(),
                   at::isnan(numbers).sum()});
}

void NonFiniteGradients::check(const std::string& where) const {
  std::string names;
  std::size_t found = 0;
  for (const Seen& each : seen_) {
    const auto part = describe(each.elements, each.finite.item<int64_t>(),
                               each.nan.item<int64_t>());
    if (!part || ++found > kNamed) continue;
    names += (found > 1 ? ", " : "") + each.of() + " (" + *part + ")";
  }
  if (found == 0) return;
  if (found > kNamed) {
    names += " and " + std::to_string(found - kNamed) + " more";
  }
  fail((found == 1 ? "a gradient is not finite: that of "
                   : "gradients are not finite (in order of arrival): "
                     "those of ") +
       names + where);
}

}  // namespace gpipe::internal
