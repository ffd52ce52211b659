#include "gpipe/runtime/cell/buffer_copies.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using at::Tensor;
using internal::BufferCopies;

class BufferCopiesTest : public SimulatedTest {};

// Returns the buffers of `norms` BatchNorms.
std::vector<Tensor> buffers_of(int norms, const c10::Device& device) {
  std::vector<Tensor> buffers;
  for (int k = 0; k < norms; ++k) {
    buffers.push_back(at::full({5}, k).to(device));
    buffers.push_back(at::full({5}, k + 0.5).to(device));
    buffers.push_back(at::full({}, k, at::TensorOptions(at::kLong)).to(device));
  }
  return buffers;
}

TEST_F(BufferCopiesTest, PutBackTheValuesAndRaiseNoVersion) {
  for (const c10::Device& device : {hpu(1), c10::Device(c10::kCPU)}) {
    const std::vector<Tensor> buffers = buffers_of(3, device);
    const BufferCopies copies(buffers);
    std::vector<int64_t> versions;
    for (Tensor buffer : buffers) {
      buffer.add_(7);
      versions.push_back(buffer._version());
    }
    copies.put_back();
    const std::vector<Tensor> expected = buffers_of(3, device);
    for (std::size_t k = 0; k < buffers.size(); ++k) {
      EXPECT_TRUE(buffers[k].cpu().equal(expected[k].cpu())) << k;
      EXPECT_EQ(buffers[k]._version(), versions[k]) << k;
    }
  }
}

// One for the statistics and one for the numbers of batches, each way.
TEST_F(BufferCopiesTest, TakeALaunchPerDtypeAndNoWait) {
  const std::vector<Tensor> buffers = buffers_of(100, hpu(0));
  synchronize();
  const Counts before = counts();
  const BufferCopies copies(buffers);
  EXPECT_EQ((counts() - before).launches, 2);
  copies.put_back();
  EXPECT_EQ((counts() - before).launches, 2 + 2);
  EXPECT_EQ((counts() - before).host_waits, 0);
}

TEST_F(BufferCopiesTest, OfNothingDoNothing) {
  const Counts before = counts();
  BufferCopies({}).put_back();
  EXPECT_EQ((counts() - before).launches, 0);
}

}  // namespace
}  // namespace gpipe::simulated
