// Tests that devices may fail at each allocation, launch, queued operation and
// event of a step.
//
// Runs only on the simulated accelerators.
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/system_tests/places.h"
#include "gpipe/system_tests/trial.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe::faults {
namespace {

using simulated::Operation;

// Returns the errors of the devices since the last call.
std::string failed_later() {
  try {
    simulated::synchronize();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::vector<Setting> devices_settings() {
  std::vector<Setting> some;
  for (Setting setting : settings({"", "1f1b", "zb-interleaved"})) {
    if (setting.microbatches != 2) continue;
    // The first mode has cells with and without recompute. In the other one all
    // cells are offloaded.
    const bool mixed =
        setting.stages() == 4 && setting.mode == Checkpoint::kExceptLast;
    const bool offloads = setting.schedule == "1f1b" && setting.stages() == 2 &&
                          setting.mode == Checkpoint::kNever;
    if (!mixed && !offloads) continue;
    setting.one_at_a_time = true;
    setting.deferred_batch_norm = setting.schedule == "1f1b";
    some.push_back(setting);
  }
  return some;
}

class DeviceFault : public ::testing::TestWithParam<Operation> {};

TEST_P(DeviceFault, AtEachOperationOfAStepLeavesNothing) {
  simulated::set_delays({});
  simulated::set_host_costs({/*most_launches=*/8, /*event_seconds=*/1e-6,
                             /*loads_operators=*/true});
  Watchdog watchdog(std::chrono::seconds(60), what_threads_do);
  std::vector<std::vector<std::string>> rows{Sweep::header()};
  for (const Setting& setting : devices_settings()) {
    SCOPED_TRACE(setting.describe());
    Trial trial(setting);
    const bool late = GetParam() == Operation::kWork;
    const Sweep one = sweep(
        trial, simulated::failing(GetParam()),
        [&] {
          watchdog.feed();
          simulated::take_trace();
          return failed_later();
        },
        late);
    EXPECT_GT(one.thrown, 0);
    EXPECT_EQ(one.misnamed + one.leaks + one.wrong, 0);
    rows.push_back(one.row(setting.describe()));
  }
  for (const std::string& line : align_columns(rows, "lrrrrrrrr")) {
    std::cout << line << "\n";
  }
}

std::string to_string(const ::testing::TestParamInfo<Operation>& info) {
  constexpr const char* kNames[] = {"Allocation", "Launch", "Work", "Event"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(All, DeviceFault,
                         ::testing::Values(Operation::kAllocation,
                                           Operation::kLaunch, Operation::kWork,
                                           Operation::kEvent),
                         to_string);

}  // namespace
}  // namespace gpipe::faults
