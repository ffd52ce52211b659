// How many intra-op threads a CPU partition has.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace gpipe {

// An equal share for each partition that is on a CPU of the threads that
// LibTorch would use (at::get_num_threads() on this thread), at least 1.
int share_of_threads(const std::vector<c10::Device>& devices);

}  // namespace gpipe
