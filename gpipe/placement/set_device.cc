#include "gpipe/placement/set_device.h"

#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>

namespace gpipe::placement {
namespace {

void set_data(const at::Tensor& tensor, const at::Tensor& data) {
  if (at::_has_compatible_shallow_copy_type(tensor, data)) {
    tensor.set_data(data);
    return;
  }
  // Does what set_data() does, for pairs of backends that it does not accept.
  // All of these are plain TensorImpls.
  if (auto* const meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    const std::lock_guard<std::mutex> lock(meta->mutex_);
    meta->grad_accumulator_.reset();  // it stores the device
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace

void set_device(const at::Tensor& tensor, c10::Device device) {
  const at::NoGradGuard no_grad;
  // With several meta devices, tensors are created on the current one.
  const c10::DeviceGuard guard(device);
  if (tensor.device() != device) set_data(tensor, tensor.to(device));
  const at::Tensor gradient = tensor.grad();
  if (gradient.defined() && gradient.device() != device) {
    set_data(gradient, gradient.detach().to(device));
  }
}

}  // namespace gpipe::placement
