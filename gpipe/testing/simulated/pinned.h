// Pinned host memory.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace gpipe::simulated {

// Returns the allocator of host memory that devices access without the host: a
// copy from there to a device reads when its stream gets to it, and not before
// the call returns. Thread-safe.
at::Allocator* pinned_allocator();

// Returns whether `data` points into memory of pinned_allocator(). Thread-safe.
bool is_pinned(const void* data);

// Returns how many bytes of pinned memory have been allocated since the process
// started. Thread-safe.
std::int64_t pinned_bytes_made();

}  // namespace gpipe::simulated
