// Meta devices that differ by their index.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace gpipe::internal {

// Returns the index of this thread's current meta device, or -1 (LibTorch's
// "meta") if no guard has set one.
//
// LibTorch knows one meta device. A program that links this target has any
// number of them. As with accelerators, each thread has a current meta device
// (c10::DeviceGuard), on which tensors are created, and a copy to another one
// is a new tensor.
//
//   const c10::DeviceGuard guard(c10::Device(c10::kMeta, 3));
//   at::empty({2}, at::kMeta).device();  // meta:3
//
// Some functions of LibTorch only accept "meta" and fail for a meta device with
// an index: arange(), linspace(), range(). So build modules without a guard and
// then move them.
c10::DeviceIndex current_meta_device();

// Returns the meta devices 0 to `count` - 1. Throws std::invalid_argument if
// LibTorch cannot number as many.
std::vector<c10::Device> meta_devices(int64_t count);

// Returns a tensor of any meta device on `device`, another one. (Without a
// guard, Tensor::to() puts it onto the current meta device.)
at::Tensor to_meta_device(const at::Tensor& tensor, const c10::Device& device);

}  // namespace gpipe::internal
