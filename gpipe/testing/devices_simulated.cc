// The simulated accelerators as devices of a test. Every test on them must have
// no race, no error that was not reported, and no work left.
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe::testing {
namespace {

constexpr int64_t kDevices = 4;

double number(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atof(text) : otherwise;
}

// The settings and checks for every test. Each iteration (--gtest_repeat) uses
// another seed of delays.
class Watch : public ::testing::EmptyTestEventListener {
  void OnTestIterationStart(const ::testing::UnitTest&,
                            int iteration) override {
    simulated::Delays delays;
    delays.seed =
        static_cast<std::uint64_t>(number("GPIPE_SIMULATED_SEED", 1)) +
        static_cast<std::uint64_t>(iteration);
    delays.probability = number("GPIPE_SIMULATED_PROBABILITY", 1.0 / 16);
    delays.seconds = number("GPIPE_SIMULATED_SECONDS", 200e-6);
    simulated::set_delays(delays);
    const double memory = number("GPIPE_SIMULATED_MEMORY", 0);
    for (int64_t k = 0; k < kDevices && memory > 0; ++k) {
      simulated::set_memory_limit(k, static_cast<int64_t>(memory));
    }
  }
  void OnTestEnd(const ::testing::TestInfo&) override {
    try {
      simulated::synchronize();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "an operator failed: " << error.what();
    }
    for (const std::string& race : simulated::take_races()) {
      ADD_FAILURE() << race;
    }
    simulated::take_trace();
    simulated::empty_cache();
  }
};

// Hosts wait as on CUDA from the start, also in ranks that a test starts.
[[maybe_unused]] const bool watched = [] {
  simulated::set_host_costs({/*most_launches=*/64, /*event_seconds=*/0,
                             /*loads_operators=*/true});
  ::testing::UnitTest::GetInstance()->listeners().Append(new Watch());
  return true;
}();

}  // namespace

c10::Device device(int64_t partition) {
  return accelerator(c10::kHPU, kDevices, partition);
}

c10::Device reference_device() { return c10::Device(c10::kCPU); }

}  // namespace gpipe::testing
