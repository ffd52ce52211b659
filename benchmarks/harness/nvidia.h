// What NVIDIA's driver tells about itself and its GPUs. No LibTorch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {

// {"gpu", "2 x NVIDIA P40"} (a fact for each model that there is) and
// {"driver", "550.54"}; nothing on a machine without the driver. Asks the
// driver's library (NVML) if there is one, so that no program has to be linked
// with it. All GPUs count, also those that CUDA_VISIBLE_DEVICES hides.
std::vector<std::pair<std::string, std::string>> nvidia_facts();

}  // namespace gpipe::benchmarks
