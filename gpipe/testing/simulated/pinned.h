// Pinned host memory.
#pragma once

#include <c10/core/Allocator.h>

namespace gpipe::simulated {

// Returns the allocator of host memory that devices access without the host: a
// copy from there to a device reads when its stream gets to it, and not before
// the call returns. Thread-safe.
at::Allocator* pinned_allocator();

// Returns whether `data` points into memory of pinned_allocator(). Thread-safe.
bool is_pinned(const void* data);

}  // namespace gpipe::simulated
