#include "gpipe/runtime/device/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace gpipe::internal {

int share_of_threads(const std::vector<c10::Device>& devices) {
  const auto on_cpu =
      std::count_if(devices.begin(), devices.end(),
                    [](const c10::Device& device) { return device.is_cpu(); });
  return std::max(
      1, at::get_num_threads() / std::max(1, static_cast<int>(on_cpu)));
}

}  // namespace gpipe::internal
