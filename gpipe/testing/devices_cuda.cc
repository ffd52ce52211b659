// Real GPUs as devices of a test. Without a GPU every test fails, also tests
// that would not have used it.
//
// Tests compare bits and compare with the CPU. So kernels are deterministic and
// do not round to TF32, unless the variable GPIPE_TEST_DEFAULT_KERNELS is 1.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gpipe/base/devices.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {
namespace {

int count() { return at::detail::getCUDAHooks().deviceCount(); }

class NeedsGpu : public ::testing::Environment {
  void SetUp() override {
    const char* defaults = std::getenv("GPIPE_TEST_DEFAULT_KERNELS");
    if (!defaults || std::string(defaults) != "1") {
      use_deterministic_kernels(/*strict=*/false);
      // Tests overwrite memory themselves, and count launches.
      at::globalContext().setDeterministicFillUninitializedMemory(false);
      at::globalContext().setAllowTF32CuBLAS(false);
      at::globalContext().setAllowTF32CuDNN(false);
    }
    if (is_rehearsal()) return;
    ASSERT_GT(count(), 0) << "the cuda variant of a test needs a GPU; there is "
                             "none here, or libtorch_cuda.so was not loaded";
  }
};

[[maybe_unused]] const auto* const needs_gpu =
    ::testing::AddGlobalTestEnvironment(new NeedsGpu());

}  // namespace

c10::Device device(int64_t partition) {
  TORCH_CHECK(count() > 0 || is_rehearsal(), "there is no GPU");
  return accelerator(c10::kCUDA, count(), partition);
}

c10::Device reference_device() { return device(0); }

}  // namespace gpipe::testing
