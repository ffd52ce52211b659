// The number of intra-op threads of a CPU partition.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace gpipe::internal {

// Returns the intra-op threads of each CPU partition: an equal share of
// LibTorch's threads (at::get_num_threads() on this thread), at least 1.
int share_of_threads(const std::vector<c10::Device>& devices);

}  // namespace gpipe::internal
