// Devices by name.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace gpipe {

// "cpu", "cuda", "cuda:1", "meta", ... as a device; one that already is a
// device as it is. c10::ValueError for a type that LibTorch does not know (with
// the nearest of those that it does), an index that is no number, and an index
// beyond the devices of a type that this process has.
c10::Device get_device(const std::string& name);
c10::Device get_device(c10::Device device);

namespace placement {

// The device that tensors on `device` say that they are on: "cuda" is the
// thread's current one, "cpu:0" is "cpu". c10::ValueError if this process has
// no such device.
c10::Device existing_device(c10::Device device);

}  // namespace placement

}  // namespace gpipe
