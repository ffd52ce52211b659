#include "gpipe/runtime/autograd/non_finite.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace gpipe {
namespace {

// Number of gradients that the error names. From the first bad gradient on, all
// later gradients of a cell may be bad too.
constexpr std::size_t kNamed = 8;

[[noreturn]] void fail(const std::string& text) {
  throw NonFiniteError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                       text);
}

// Returns whether `tensor` can have an element that is not finite.
bool has_numbers(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() && tensor.numel() > 0 &&
         tensor.layout() == at::kStrided &&
         (tensor.is_floating_point() || tensor.is_complex());
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

std::optional<std::string> internal::non_finite_part(const at::Tensor& tensor) {
  if (!has_numbers(tensor)) return std::nullopt;
  const c10::NoGradGuard no_grad;
  const auto finite = at::isfinite(tensor).sum().item<int64_t>();
  if (finite == tensor.numel()) return std::nullopt;
  return describe(tensor.numel(), finite,
                  at::isnan(tensor).sum().item<int64_t>());
}

void internal::check_finite(const at::Tensor& tensor, const std::string& what) {
  if (const auto part = internal::non_finite_part(tensor)) {
    fail(what + " is not finite: " + *part);
  }
}

void internal::check_finite(const std::vector<at::Tensor>& tensors,
                            const std::string& what) {
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    internal::check_finite(
        tensors[k], tensors.size() == 1
                        ? what
                        : "element " + std::to_string(k) + " of " + what);
  }
}

void internal::NonFiniteGradients::watch(const at::Tensor& grad,
                                         std::function<std::string()> of) {
  if (!has_numbers(grad)) return;
  const c10::NoGradGuard no_grad;
  seen_.push_back({std::move(of), grad.numel(), at::isfinite(grad).sum(),
                   at::isnan(grad).sum()});
}

void internal::NonFiniteGradients::check(const std::string& where) const {
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

}  // namespace gpipe
