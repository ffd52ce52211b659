// Meta devices that are told apart by their index.
#pragma once

#include <c10/core/Device.h>

namespace gpipe {

// LibTorch knows one meta device. Where this is linked there are as many as one
// likes: like accelerators, each thread has a current one (c10::DeviceGuard),
// which tensors are made on, and a copy to another one is a new tensor.
//
//   const c10::DeviceGuard guard(c10::Device(c10::kMeta, 3));
//   at::empty({2}, at::kMeta).device();  // meta:3
//
// A few functions of LibTorch ask whether a device is "meta" and nothing else,
// and fail for one with an index: arange(), linspace(), range(). Modules are
// best built without a guard and then moved.
//
// The index of the current one on this thread; -1, as in LibTorch ("meta"),
// unless a guard says otherwise.
c10::DeviceIndex current_meta_device();

}  // namespace gpipe
