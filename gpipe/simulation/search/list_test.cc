#include "gpipe/simulation/search/list.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <random>
#include <vector>

#include "gpipe/schedule/validate.h"
#include "gpipe/simulation/search/memory.h"
#include "gpipe/simulation/search/order.h"
#include "gpipe/simulation/search/problem.h"

namespace gpipe::internal {
namespace {

using Recompute = ListRule::Recompute;

class ListTest : public testing::Test {
 protected:
  int number(int least, int most) {
    return least + static_cast<int>(random_() % (most - least + 1));
  }

  std::vector<double> list(std::size_t stages, int least, int most) {
    std::vector<double> list;
    for (std::size_t s = 0; s < stages; ++s) {
      list.push_back(number(least, most));
    }
    return list;
  }

  // Returns a random placement with one to three stages on each rank.
  std::vector<int> place() {
    const int ranks = number(1, 4);
    std::vector<int> place;
    for (int r = 0; r < ranks; ++r) {
      for (int k = number(1, 3); k > 0; --k) place.push_back(r);
    }
    for (std::size_t k = place.size(); k > 1; --k) {
      std::swap(place[k - 1], place[random_() % k]);
    }
    return place;
  }

  Costs costs(std::size_t stages) {
    Costs costs;
    costs.forward = list(stages, 0, 9);
    costs.backward_input = list(stages, 0, 9);
    costs.backward_weight = list(stages, 0, 9);
    costs.recompute = list(stages, 0, 9);
    costs.latency = number(0, 2);
    costs.bandwidth = number(0, 2);
    costs.boundary_bytes = list(stages, 0, 4);
    costs.resident_bytes = list(stages, 0, 9);
    costs.activation_bytes = list(stages, 0, 9);
    costs.input_bytes = list(stages, 0, 9);
    return costs;
  }

  std::mt19937 random_{0};
};

// The limits are the least memory, or a little more.
TEST_F(ListTest, NeverGetsStuckInTheMemoryThatARankNeeds) {
  for (int k = 0; k < 3000; ++k) {
    const auto place = this->place();
    const Costs costs = this->costs(place.size());
    const int m = number(1, 6);
    AutomaticOptions options;
    options.recompute = k % 3 > 0;
    const Problem unlimited(place, m, costs, options);
    for (int r = 0; r < unlimited.ranks; ++r) {
      options.memory_bytes.push_back(least_bytes(unlimited, r) +
                                     number(0, k % 4 * 5));
    }
    const Problem problem(place, m, costs, options);
    ListRule rule;
    rule.spacing = number(0, 4) / 2.0;
    rule.filler = number(0, 2) / 2.0;
    rule.waits = k % 2;
    rule.splits = number(0, 1) == 1;
    rule.recompute = options.recompute ? Recompute::kIfFull : Recompute::kNever;
    const std::optional<Order> order = list_schedule(problem, rule);
    ASSERT_TRUE(order.has_value()) << k;
    validate(schedule_of(*order, problem));
    EXPECT_TRUE(fits(*order, problem)) << k;
  }
}

TEST_F(ListTest, HasNothingWhereItsRuleNeedsMore) {
  Costs costs;
  costs.forward = costs.backward = costs.recompute = {1, 1};
  costs.activation_bytes = {10, 10};
  costs.input_bytes = {1, 1};
  AutomaticOptions options;
  options.memory_bytes = {11};
  const Problem problem({0, 0}, 2, costs, options);
  ListRule rule;
  EXPECT_FALSE(list_schedule(problem, rule).has_value());
  rule.recompute = Recompute::kIfFull;
  EXPECT_TRUE(list_schedule(problem, rule).has_value());
  // With recompute of both stages the rank needs 1 + (1 + 10) bytes.
  rule.recompute = Recompute::kAlways;
  EXPECT_FALSE(list_schedule(problem, rule).has_value());
}

// The makespan is that of 1F1B if each rank has the memory that it needs in
// 1F1B.
TEST_F(ListTest, IsAsShortAsOneForwardOneBackwardInItsMemory) {
  for (const int p : {1, 2, 4, 8}) {
    for (const int m : {1, 3, 8, 20}) {
      const auto stages = static_cast<std::size_t>(p);
      Costs costs;
      costs.forward.assign(stages, 1);
      costs.backward.assign(stages, 2);
      costs.activation_bytes.assign(stages, 1);
      std::vector<int> place;
      AutomaticOptions options;
      for (int r = 0; r < p; ++r) {
        place.push_back(r);
        options.memory_bytes.push_back(p - r);
      }
      const Problem problem(place, m, costs, options);
      const auto order = list_schedule(problem, {});
      ASSERT_TRUE(order.has_value());
      Times times;
      ASSERT_TRUE(OrderSimulator(problem).run(*order, &times));
      EXPECT_EQ(times.makespan, (m + p - 1) * 3) << p << " ranks, " << m;
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
