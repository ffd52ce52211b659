#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <vector>

#include "benchmarks/peers/step_meter.h"

namespace gpipe::benchmarks {
namespace {

constexpr std::size_t kMib = 1 << 20;

// Allocates and frees pages of the kernel. Sanitizers add no memory to them.
void hold(std::size_t mib) {
  void* const pages =
      mmap(nullptr, mib * kMib, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, /*fd=*/-1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(munmap(pages, mib * kMib), 0);
}

TEST(ProcessMemory, PeakStaysWhenMemoryIsGivenBack) {
  const ProcessMemory memory;
  hold(256);
  EXPECT_NEAR(memory.peak_mib(), 256, 16);
}

TEST(ProcessMemory, PeakBeforeTheBeginningDoesNotCount) {
  hold(256);
  const ProcessMemory memory;
  hold(64);
  EXPECT_NEAR(memory.peak_mib(), 64, 16);
}

TEST(ProcessMemory, FreedMemoryIsReturnedFirst) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator of the sanitizer keeps freed memory";
#endif
  std::vector<std::vector<char>> blocks;
  for (int k = 0; k < 1024; ++k) blocks.emplace_back(kMib / 16, 'x');
  // Keeps the last block, so that malloc cannot shrink its heap.
  blocks.erase(blocks.begin(), blocks.end() - 1);
  const ProcessMemory memory;
  for (int k = 0; k < 1024; ++k) blocks.emplace_back(kMib / 16, 'x');
  EXPECT_NEAR(memory.peak_mib(), 64, 16);
}

}  // namespace
}  // namespace gpipe::benchmarks
