// Tests a long run with an optimizer, with and without failing steps. After 200
// steps (1,000 with GPIPE_THOROUGH=1) it must use as many bytes and threads as
// after 100.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/system_tests/places.h"
#include "gpipe/system_tests/trial.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"

namespace gpipe::faults {
namespace {

using testing::device;
using testing::error_of;
using torch::Tensor;

constexpr int64_t kFirst = 100, kRows = 6;

struct Held {
  std::vector<int64_t> bytes;
  int64_t threads;
  bool operator==(const Held& other) const {
    return bytes == other.bytes && threads == other.threads;
  }
};

Held held() { return {live_bytes(), thread_count().all()}; }

std::string text(const Held& held) {
  std::string text = std::to_string(held.threads) + " threads, bytes";
  for (const int64_t each : held.bytes) text += " " + std::to_string(each);
  return text;
}

// Runs steps of Adam, alternating between forward() with backward() and
// train_step(). With failures, every seventh step fails in a backward.
void train(bool with_failures) {
  instruments::CountingAllocator::install();
  Watchdog watchdog(std::chrono::seconds(60), what_threads_do);
  torch::manual_seed(0);
  GPipe pipeline(testing::conv_model(0.2),
                 testing::options({2, 3, 3}, 3).threads_per_partition(1));
  torch::optim::Adam optimizer(pipeline->parameters());
  const auto schedule = one_forward_one_backward(3, 3);
  Place place;
  place.site = "gradient copy-out";
  place.partition = 1;
  place.microbatch = 1;
  place.phase = Phase::kBackward;
  const int64_t steps = testing::rounds(200, 1000);
  Held first{};
  for (int64_t step = 1; step <= steps; ++step) {
    watchdog.feed();
    const bool fails = with_failures && step % 7 == 5;
    if (fails) {
      watch(place, kThrown[step / 7 % 3]);
    } else if (with_failures) {
      watch();
    }
    const auto run = [&] {
      optimizer.zero_grad();
      const Tensor x =
          torch::randn({kRows, 3, 8, 8}, torch::kDouble).to(device());
      if (step % 2 == 0) {
        pipeline->forward(x).pow(2).mean().backward();
      } else {
        pipeline->train_step(
            x, torch::zeros({kRows, 5}, torch::kDouble),
            [](const Tensor& output, const Tensor& target) {
              return (output - target).pow(2).mean();
            },
            schedule);
      }
      optimizer.step();
    };
    const std::string error = error_of(run);
    ASSERT_EQ(!error.empty(), fails) << error;
    if (step == kFirst) first = held();
  }
  end_watch();
  const Held last = held();
  EXPECT_TRUE(last == first)
      << text(first) << " after " << kFirst << " steps, but " << text(last)
      << " after " << steps;
  std::cout << "after " << kFirst << " steps " << text(first) << "; after "
            << steps << " " << text(last) << "\n";
}

TEST(ManySteps, HoldNoMoreThanAHundred) { train(/*with_failures=*/false); }

TEST(ManySteps, HoldNoMoreThanAHundredIfSomeFail) {
  train(/*with_failures=*/true);
}

}  // namespace
}  // namespace gpipe::faults
