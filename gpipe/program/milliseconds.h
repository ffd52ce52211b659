// Converts times in flags, which are seconds with a fraction. No LibTorch.
#pragma once

#include <chrono>

namespace gpipe {

// Returns the time in milliseconds, rounded up, so that a short time does not
// become 0. Values that are too large, infinity included, are clamped. NaN is
// 0. Thread-safe.
std::chrono::milliseconds milliseconds_of(double seconds);

}  // namespace gpipe
