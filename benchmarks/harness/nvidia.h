// The version of NVIDIA's driver and its GPUs. Does not include LibTorch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {

// Returns {"gpu", "2 x NVIDIA P40"} for each model of GPU and {"driver",
// "550.54"}, or nothing on a machine without the driver. Loads the driver's
// library (NVML) at run time, so that no program is linked with it. Counts all
// GPUs, including those that CUDA_VISIBLE_DEVICES hides.
std::vector<std::pair<std::string, std::string>> nvidia_facts();

}  // namespace gpipe::benchmarks
