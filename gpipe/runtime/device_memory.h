// What a device holds, on any device.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>

namespace gpipe {

// Bytes; none where they are not known.
using MemoryReader =
    std::function<std::optional<double>(const c10::Device& device)>;

// Of an accelerator: what LibTorch's allocator has given to tensors that are
// alive, as far as the host has got. Of the CPU, for which LibTorch does not
// count: the resident set of the whole process, where there is a /proc. None of
// other devices. Changes nothing, waits for nothing; some microseconds.
// Threads: any.
std::optional<double> device_memory(const c10::Device& device);

}  // namespace gpipe
