// The devices that this process uses.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace gpipe::simulated {

// On a GPU, the first use of a device makes a context there, which takes some
// hundred megabytes of its memory. Becoming the current device is a use; being
// it from the start of a thread is none. Thread-safe.

// Notes that `device` is used.
void make_context(c10::DeviceIndex device);
// Returns whether `device` has been used.
bool has_context(c10::DeviceIndex device);
// Returns the devices that have been used since the last call of
// forget_contexts().
std::vector<c10::DeviceIndex> devices_with_context();
void forget_contexts();

}  // namespace gpipe::simulated
