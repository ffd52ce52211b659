// The devices that a test runs on: those of its variant, see gpipe_device_test
// in tools/build_defs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace gpipe::testing {

// Returns the device of `partition` in a test's pipeline: the CPU, or the
// accelerators of the variant in turn. If the variable GPIPE_TEST_DEVICES is n,
// only the first n accelerators are used, so that partitions share devices. If
// it is 0, the device is the CPU: the rehearsal of tools/gpu_check.sh.
c10::Device device(int64_t partition = 0);

// Returns a device on which plain LibTorch computes the same bits as on
// device(j): device(0) for real accelerators, else the CPU.
c10::Device reference_device();

// Returns `tensor` on device(0).
at::Tensor on_device(const at::Tensor& tensor);

// Returns float32 ones on device(0).
at::Tensor ones(at::IntArrayRef sizes);

// Returns device(0), device(1), ..., one per partition.
std::vector<c10::Device> devices(std::size_t partitions);

// ---- Assigns a test's partitions to accelerators.

// Returns whether the variable GPIPE_TEST_DEVICES is 0.
inline bool is_rehearsal() {
  const char* limit = std::getenv("GPIPE_TEST_DEVICES");
  return limit && std::string_view(limit) == "0";
}

// Returns the accelerator of `partition`, in turn among `count` devices, with
// the exceptions of device().
inline c10::Device accelerator(c10::DeviceType type, int64_t count,
                               int64_t partition) {
  if (is_rehearsal()) return c10::Device(c10::kCPU);
  const char* limit = std::getenv("GPIPE_TEST_DEVICES");
  if (limit && std::atoi(limit) > 0 && std::atoi(limit) < count) {
    count = std::atoi(limit);
  }
  return c10::Device(type, static_cast<c10::DeviceIndex>(partition % count));
}

}  // namespace gpipe::testing
