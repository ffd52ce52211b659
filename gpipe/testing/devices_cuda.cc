// Real GPUs as devices of a test. Without a GPU every test fails, also tests
// that would not have used it.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "gpipe/testing/accelerator.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {
namespace {

int count() { return at::detail::getCUDAHooks().deviceCount(); }

class NeedsGpu : public ::testing::Environment {
  void SetUp() override {
    ASSERT_GT(count(), 0) << "the cuda variant of a test needs a GPU; there is "
                             "none here, or libtorch_cuda.so was not loaded";
  }
};

[[maybe_unused]] const auto* const needs_gpu =
    ::testing::AddGlobalTestEnvironment(new NeedsGpu());

}  // namespace

c10::Device device(int64_t partition) {
  TORCH_CHECK(count() > 0, "there is no GPU");
  return accelerator(c10::kCUDA, count(), partition);
}

c10::Device reference_device() { return device(0); }

}  // namespace gpipe::testing
