#include "benchmarks/harness/costs/links.h"

#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

TEST(MeasureLink, NothingIsCopiedBetweenPartitionsOnCpus) {
  const c10::Device cpu(c10::kCPU), first(c10::kCPU, 0);
  for (const auto& link : {measure_link(cpu, cpu), measure_link(cpu, first)}) {
    EXPECT_EQ(link.latency, 0);
    EXPECT_EQ(link.bandwidth, 0);
  }
}

TEST(MeasureLink, NothingIsCopiedFromAnAcceleratorToItself) {
  // The device need not exist.
  const c10::Device device(c10::kCUDA, 5);
  EXPECT_EQ(measure_link(device, device).bandwidth, 0);
}

}  // namespace
}  // namespace gpipe::benchmarks
