#include "gpipe/testing/simulated/tensor_memory.h"

#include <ATen/ops/from_blob.h>

#include "gpipe/testing/simulated/current.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {

bool is_simulated(const at::Tensor& tensor) {
  return tensor.device().type() == kDeviceType;
}

at::Tensor host_alias(const at::Tensor& tensor) {
  return wrapped_as(
      tensor, at::from_blob(
                  tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                  at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU)));
}

at::Tensor wrapped_as(const at::Tensor& tensor, at::Tensor copy) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

Access access(const at::Tensor& tensor, bool write) {
  Access access;
  access.write = write;
  if (tensor.numel() == 0) return access;
  int64_t last = 0;
  for (int64_t k = 0; k < tensor.dim(); ++k) {
    last += (tensor.size(k) - 1) * tensor.stride(k);
  }
  access.begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  access.end =
      access.begin + static_cast<std::size_t>(last + 1) * tensor.itemsize();
  return access;
}

c10::Stream stream_of(const at::Tensor& tensor) {
  return current_stream(tensor.device().index());
}

}  // namespace gpipe::simulated
