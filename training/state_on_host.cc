#include "training/state_on_host.h"

#include <c10/core/GradMode.h>

#include "training/files/parameter_rows.h"
#include "training/optimizer_state.h"

namespace gpipe {

void StateOnHost::fetch() {
  const c10::NoGradGuard no_grad;
  internal::for_each_state_tensor(
      optimizer_, [&](const at::Tensor& parameter, at::Tensor& tensor) {
        if (tensor.device() == parameter.device()) return;
        at::Tensor there = tensor.to(parameter.device());
        fetched_[there.unsafeGetTensorImpl()] = {there, tensor};
        tensor = std::move(there);
      });
}

void StateOnHost::store() {
  const c10::NoGradGuard no_grad;
  internal::for_each_state_tensor(
      optimizer_, [&](const at::Tensor&, at::Tensor& tensor) {
        if (tensor.is_cpu()) return;
        const auto found = fetched_.extract(tensor.unsafeGetTensorImpl());
        at::Tensor host =
            found ? found.mapped().host : internal::host_memory_for(tensor);
        host.copy_(tensor);
        tensor = std::move(host);
      });
  fetched_.clear();
}

}  // namespace gpipe
