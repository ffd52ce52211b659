#include "gpipe/program/host_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace gpipe {
namespace {

constexpr int kBlocks = 256;
constexpr std::size_t kBlock = 256 << 10;
constexpr int kPages = kBlocks * static_cast<int>(kBlock / 4096);

// Allocates and frees what a step may need. Returns the page faults.
long page_faults_of_step() {
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  {
    std::vector<std::unique_ptr<char[]>> blocks;
    for (int k = 0; k < kBlocks; ++k) {
      blocks.emplace_back(new char[kBlock]);
      std::memset(blocks.back().get(), k, kBlock);
    }
  }
  ::getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(HostMemoryTest, TheEnvironmentDecides) {
  for (const char* name :
       {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    ::setenv(name, "glibc.malloc.trim_threshold=1", 1);
    EXPECT_TRUE(keep_freed_memory_variables().empty()) << name;
    ::unsetenv(name);
  }
}

TEST(HostMemoryTest, AStepUsesTheMemoryOfTheStepBefore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator is not glibc's";
#endif
  // glibc reads the variables when a program starts: this test starts again.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto take_two_steps = [] {
    page_faults_of_step();
    std::exit(page_faults_of_step() < kPages / 100 ? 0 : 1);
  };
  EXPECT_EXIT(take_two_steps(), ::testing::ExitedWithCode(1), "");
  const auto variables = keep_freed_memory_variables();
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  EXPECT_EXIT(take_two_steps(), ::testing::ExitedWithCode(0), "");
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
}

}  // namespace
}  // namespace gpipe
