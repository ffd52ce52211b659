// Finds devices by name.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace gpipe {

// Returns the device called "cpu", "cuda", "cuda:1", "meta", ..., or `device`
// itself. Throws c10::ValueError if LibTorch does not know the type (the text
// lists the nearest types), if the index is not a number, or if the index is
// beyond this process's devices of that type.
c10::Device get_device(const std::string& name);
c10::Device get_device(c10::Device device);

namespace placement {

// Returns `device` as Tensor::device() reports it: "cuda" becomes the thread's
// current CUDA device, and "cpu:0" becomes "cpu". Throws c10::ValueError if
// this process has no such device.
c10::Device existing_device(c10::Device device);

}  // namespace placement

}  // namespace gpipe
