#include "gpipe/runtime/recompute/outline.h"

#include <c10/util/StringUtil.h>

namespace gpipe::internal {

Outline::Outline(const at::Tensor& tensor, bool with_grad)
    : defined(tensor.defined()) {
  if (!defined) return;
  type = tensor.scalar_type();
  sizes = {tensor.sizes().begin(), tensor.sizes().end()};
  requires_grad = with_grad && tensor.requires_grad();
}

std::string Outline::text() const {
  if (!defined) return "undefined";
  return c10::str(c10::IntArrayRef(sizes), " ", type,
                  requires_grad ? " that requires grad" : "");
}

}  // namespace gpipe::internal
