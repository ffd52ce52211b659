// Times in flags, which are seconds with a fraction. No LibTorch.
#pragma once

#include <chrono>

namespace gpipe {

// Rounded up, so that a little time does not become none. The longest there is
// for what is longer, infinity among it; zero for what is no number. Threads: a
// pure function.
std::chrono::milliseconds milliseconds_of(double seconds);

}  // namespace gpipe
