// The devices that a test runs on: those of its variant, see gpipe_device_test
// in tools/build_defs.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace gpipe::testing {

// Where partition j of a test's pipeline lives: the CPU, or the accelerators
// of the variant in turn. GPIPE_TEST_DEVICES=n in the environment uses the
// first n of them only, so that partitions share one.
c10::Device device(int64_t partition = 0);

// Where plain LibTorch computes the same bits as on device(j): the CPU, but for
// a real accelerator.
c10::Device reference_device();

// device(0), device(1), ...
std::vector<c10::Device> devices(std::size_t partitions);

}  // namespace gpipe::testing
