#include "gpipe/simulation/search/order.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "gpipe/schedule/named.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/search/problem.h"
#include "gpipe/simulation/simulate.h"

namespace gpipe::internal {
namespace {

// The search relies on OrderSimulator to give the same results as simulate().
TEST(AutomaticOrderTest, TakesTheTimeAndMemoryThatSimulateSays) {
  std::mt19937 random(0);
  const auto list = [&](std::size_t stages) {
    std::vector<double> list;
    for (std::size_t s = 0; s < stages; ++s) {
      list.push_back(static_cast<double>(random() % 100) / 7);
    }
    return list;
  };
  int compared = 0, with_copies = 0;
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only") continue;
    for (int k = 0; k < 40; ++k) {
      const int ranks = 1 + static_cast<int>(random() % 4);
      const int v = fixed_stages_per_rank(name).value_or(2);
      Schedule schedule =
          named_schedule(name, ranks, 1 + static_cast<int>(random() % 8), v);
      if (k % 2) {
        schedule = with_recompute(
            schedule, [](int i) { return i % 3 > 0; },
            k % 4 == 1 ? RecomputePlacement::kAhead
                       : RecomputePlacement::kBeforeBackward);
      }
      const bool offloads = k % 8 == 2;
      if (offloads) {
        schedule = with_offload(
            schedule, [](int s, int i) { return (s + i) % 3 > 0; }, k / 8);
      }
      const auto place = rank_of_stage(schedule);
      Costs costs;
      costs.forward = list(place.size());
      costs.backward = list(place.size());
      costs.backward_input = list(place.size());
      costs.backward_weight = list(place.size());
      costs.recompute = list(place.size());
      costs.latency = k % 3;
      costs.bandwidth = k % 5;
      costs.boundary_bytes = list(place.size());
      costs.overlap = k % 3 / 2.0;
      costs.resident_bytes = list(place.size());
      costs.activation_bytes = list(place.size());
      costs.input_bytes = list(place.size());
      costs.weight_activation_bytes = list(place.size());
      AutomaticOptions options;
      if (offloads) {
        costs.host_bandwidth = 1 + k % 3;
        costs.offload_bytes = costs.activation_bytes;
        for (double& bytes : costs.offload_bytes) bytes /= 1 + k / 8;
        options.memory_bytes = {1e9};
      }
      const Problem problem(place, num_microbatches(schedule), costs, options);
      const Order order = order_of(schedule, problem);
      EXPECT_TRUE(schedule_of(order, problem).ranks == schedule.ranks);

      const Timeline timeline = simulate(schedule, costs);
      Times times;
      ASSERT_TRUE(OrderSimulator(problem).run(order, &times));
      EXPECT_EQ(times.makespan, timeline.makespan) << name;
      for (int r = 0; r < ranks; ++r) {
        const double peak = timeline.peak_bytes[static_cast<std::size_t>(r)];
        EXPECT_EQ(has_copies(order, r)
                      ? times.peak_bytes[static_cast<std::size_t>(r)]
                      : peak_bytes(order, r, problem),
                  peak)
            << name;
        with_copies += has_copies(order, r) ? 1 : 0;
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 12 * 40);
  EXPECT_GT(with_copies, 12 * 40 / 8);
}

TEST(AutomaticOrderTest, SaysThatAnOrderGetsStuck) {
  Costs costs;
  costs.forward = costs.backward = {1, 1};
  const Problem problem({0, 0}, 1, costs, {});
  const Order order = order_of({{{{1, ActionKind::kForward, 0},
                                  {0, ActionKind::kForward, 0},
                                  {1, ActionKind::kBackward, 0},
                                  {0, ActionKind::kBackward, 0}}}},
                               problem);
  Times times;
  EXPECT_FALSE(OrderSimulator(problem).run(order, &times));
}

}  // namespace
}  // namespace gpipe::internal
