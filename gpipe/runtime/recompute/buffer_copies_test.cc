#include "gpipe/runtime/recompute/buffer_copies.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"
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
  BufferCopies(std::vector<Tensor>()).put_back();
  EXPECT_EQ((counts() - before).launches, 0);
}

using internal::PastBuffers;

TEST_F(BufferCopiesTest, PastValuesLastUntilTheEndOfTheScope) {
  for (const c10::Device& device : {hpu(1), c10::Device(c10::kCPU)}) {
    Tensor buffer = at::zeros({3}).to(device);
    const BufferCopies past({buffer});
    buffer.add_(1);
    const int64_t version = buffer._version();
    {
      const PastBuffers scope(past);
      EXPECT_TRUE(buffer.cpu().equal(at::zeros({3})));
      EXPECT_EQ(buffer._version(), version);
      buffer.add_(5);
    }
    EXPECT_TRUE(buffer.cpu().equal(at::ones({3})));
  }
}

TEST_F(BufferCopiesTest, AGraphKeepsACopyOfABufferWithAPastValue) {
  Tensor buffer = at::zeros({3, 2});
  const Tensor other = at::ones({2});
  EXPECT_TRUE(PastBuffers::to_save(buffer).is_same(buffer));
  const BufferCopies past({buffer});
  buffer.fill_(2);
  Tensor row, late;
  {
    PastBuffers scope(past);
    EXPECT_TRUE(PastBuffers::to_save(other).is_same(other));
    EXPECT_FALSE(PastBuffers::to_save(Tensor()).defined());
    {
      const internal::UnreadStatistics unread;
      EXPECT_TRUE(PastBuffers::to_save(buffer).is_same(buffer));
    }
    row = PastBuffers::to_save(buffer[1]);
    EXPECT_FALSE(row.is_alias_of(buffer));
    EXPECT_EQ(row._version(), 0);
    scope.restore();
    EXPECT_EQ(row._version(), 0);
  }
  EXPECT_TRUE(row.equal(at::zeros({2})));
  EXPECT_TRUE(buffer.equal(at::full({3, 2}, 2.)));
  {
    const PastBuffers scope(past);
    late = PastBuffers::to_save(buffer);
    buffer.add_(1);
  }
  EXPECT_EQ(late._version(), 1);  // so that a backward is refused
}

}  // namespace
}  // namespace gpipe::simulated
