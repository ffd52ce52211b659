// Parameters and buffers, moved in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace gpipe::placement {

// Moves a leaf and its gradient as Module::to(device) does, so that everyone
// who holds it, such as an optimizer, holds it still: the tensor object stays.
// Other than Module::to(), also to and from devices that set_data() refuses
// (meta, PrivateUse1). LibTorch's error if the values cannot get there.
void set_device(const at::Tensor& tensor, c10::Device device);

}  // namespace gpipe::placement
