// The memory in use on a device of any type.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>

namespace gpipe {

// A function that returns the bytes in use on a device; nullopt if they are not
// known.
using MemoryReader =
    std::function<std::optional<double>(const c10::Device& device)>;

// Returns the bytes in use on `device`:
// - Accelerators: the bytes that LibTorch's allocator has given to live
//   tensors, as of the host's current point in the program. A device without an
//   index is the current one of the thread.
// - CPU: the resident set of the whole process, because LibTorch does not count
//   CPU memory; nullopt without /proc.
// - Other devices: nullopt.
//
// The call changes nothing, does not wait for the device, and takes some
// microseconds.
// Threads: any.
std::optional<double> device_memory(const c10::Device& device);

}  // namespace gpipe
