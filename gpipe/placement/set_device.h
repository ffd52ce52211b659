// Moves parameters and buffers in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace gpipe::placement {

// Moves a leaf and its gradient to `device`, as Module::to(device) does. The
// tensor object stays the same, so optimizers and other owners keep a valid
// reference. Unlike Module::to(), this also works for devices that set_data()
// refuses (meta, PrivateUse1). Throws LibTorch's error if the values cannot be
// copied to `device`.
void set_device(const at::Tensor& tensor, c10::Device device);

}  // namespace gpipe::placement
