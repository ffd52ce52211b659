// The bytes of the tensors on a device of any type.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace gpipe::instruments {

// On accelerators, the figures come from LibTorch's caching allocator. A tensor
// counts with its block, which is rounded up (to 512 bytes on CUDA), until the
// host frees it. Prepares LibTorch for the device type if the process has not
// used it yet: CUDA's allocator throws otherwise.
//
// On the CPU, the figures are those of CountingAllocator, which must be
// installed.
//
// All functions throw c10::Error for a device type whose allocator does not
// count. They do not wait for the device. Threads: any.

// Returns the bytes of live tensors on `device`.
int64_t live_bytes(const c10::Device& device);
// Returns the largest value of live_bytes() since reset_peak_bytes().
int64_t peak_bytes(const c10::Device& device);
void reset_peak_bytes(const c10::Device& device);
// Returns the most bytes that LibTorch has reserved on `device` since
// reset_peak_bytes(); nullopt for the CPU.
std::optional<int64_t> peak_reserved_bytes(const c10::Device& device);

}  // namespace gpipe::instruments
