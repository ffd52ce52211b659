// Tests that every allocation of a step may fail.
//
// Runs on the CPU. device_fault_test.cc does the same for accelerators.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/base/text.h"
#include "gpipe/system_tests/places.h"
#include "gpipe/system_tests/trial.h"

namespace gpipe::faults {
namespace {

using instruments::CountingAllocator;
using torch::Tensor;

// Returns the number of allocations of the user's own part of a step: loss and
// backward.
int64_t allocations_of_the_loss(int64_t rows) {
  const Tensor output =
      torch::randn({rows, 3}, torch::kDouble).requires_grad_();
  auto& failing = instruments::CountingAllocator::failing();
  failing.arm(-1, [] {});
  output.pow(2).sum().backward();
  return failing.disarm();
}

TEST(AllocationFault, EveryAllocationOfAStepFailsOnceAndLeavesNothing) {
  Watchdog watchdog(std::chrono::seconds(60), what_threads_do);
  std::vector<std::vector<std::string>> rows{Sweep::header()};
  Sweep all;
  for (Setting setting :
       settings({"", "fill-drain", "1f1b", "interleaved-1f1b", "zb-h1"})) {
    const int stages = setting.stages_per_rank == 2 ? 4 : 3;
    if (setting.stages() != stages || setting.microbatches != 2) continue;
    setting.one_at_a_time = true;
    for (const bool deferred : {false, true}) {
      setting.deferred_batch_norm = deferred;
      SCOPED_TRACE(setting.describe());
      Trial trial(setting);
      const Sweep one =
          sweep(trial, instruments::CountingAllocator::failing(), [&] {
            watchdog.feed();
            return "";
          });
      EXPECT_LE(one.unnamed,
                setting.schedule.empty()
                    ? allocations_of_the_loss(2 * setting.microbatches)
                    : 0);
      EXPECT_GT(one.thrown, 0);
      EXPECT_EQ(one.misnamed + one.leaks + one.wrong, 0);
      rows.push_back(one.row(setting.describe()));
      all += one;
    }
  }
  rows.push_back(all.row("all"));
  for (const std::string& line : align_columns(rows, "lrrrrrrrr")) {
    std::cout << line << "\n";
  }
}

}  // namespace
}  // namespace gpipe::faults
