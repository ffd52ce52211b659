#include "balancing/chain/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balancing/solver/fill_drain.h"
#include "balancing/solver/partition.h"
#include "balancing/solver/testing.h"

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Balance = std::vector<int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Equal devices without memory limits. Each partition keeps one graph and one
// input.
Chain chain_of(std::vector<ChainLayer> layers, int64_t partitions,
               int64_t microbatches) {
  Chain chain;
  chain.layers = std::move(layers);
  chain.devices.resize(partitions);
  chain.microbatches = microbatches;
  chain.graphs_kept.assign(partitions, 1);
  chain.inputs_kept.assign(partitions, 1);
  return chain;
}

Chain chain_of_times(const std::vector<double>& forward, int64_t partitions,
                     int64_t microbatches) {
  std::vector<ChainLayer> layers(forward.size());
  for (std::size_t k = 0; k < forward.size(); ++k) {
    layers[k].forward = forward[k];
    layers[k].backward = 2 * forward[k];
  }
  return chain_of(layers, partitions, microbatches);
}

Chain chain_of_bytes(const std::vector<double>& resident, int64_t partitions,
                     double limit) {
  Chain chain =
      chain_of_times(std::vector<double>(resident.size(), 1), partitions, 4);
  for (std::size_t k = 0; k < resident.size(); ++k) {
    chain.layers[k].resident_bytes = resident[k];
  }
  for (ChainDevice& device : chain.devices) device.memory_bytes = limit;
  return chain;
}

// --- The definitions, written again in the simplest way.

StageCost expected_cost(const Chain& chain, int64_t partition, int64_t first,
                        int64_t last) {
  double forward = 0, backward = 0, resident = 0, saved = 0;
  for (int64_t k = first; k < last; ++k) {
    forward += chain.layers[k].forward;
    backward += chain.layers[k].backward;
    resident += chain.layers[k].resident_bytes;
    saved += chain.layers[k].saved_bytes;
  }
  const double speed = chain.devices[partition].speed;
  double input = 0, transfer = 0;
  if (partition > 0) {
    input = chain.layers[first - 1].output_bytes;
    for (const ChainSkip& skip : chain.skips) {
      if (skip.stashed_by < first && first <= skip.popped_by &&
          skip.popped_by < last) {
        input += skip.bytes;
      }
    }
    transfer = chain.link.latency + chain.link.seconds_per_byte * input;
  }
  return {forward / speed, backward / speed, transfer,
          resident + static_cast<double>(chain.graphs_kept[partition]) * saved +
              static_cast<double>(chain.inputs_kept[partition]) * input};
}

std::vector<StageCost> expected_costs(const Chain& chain,
                                      const Balance& balance) {
  std::vector<StageCost> stages;
  int64_t first = 0;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    stages.push_back(expected_cost(chain, static_cast<int64_t>(j), first,
                                   first + balance[j]));
    first += balance[j];
  }
  return stages;
}

// Returns the length of the schedule, computed cell by cell. A copy is a stage
// between two partitions.
double simulated(const std::vector<StageCost>& stages, int64_t microbatches) {
  std::vector<double> f, b;
  for (std::size_t j = 0; j < stages.size(); ++j) {
    if (j > 0) {
      f.push_back(stages[j].transfer);
      b.push_back(stages[j].transfer);
    }
    f.push_back(stages[j].forward);
    b.push_back(stages[j].backward);
  }
  std::vector<double> free(f.size(), 0);
  for (int64_t i = 0; i < microbatches; ++i) {
    double arrives = 0;
    for (std::size_t j = 0; j < f.size(); ++j) {
      arrives = free[j] = std::max(free[j], arrives) + f[j];
    }
  }
  // A link works in both directions at once. A worker starts its backwards when
  // its forwards are done, which is before the gradient of the last micro-batch
  // arrives.
  for (int64_t i = 0; i < microbatches; ++i) {
    double arrives = 0;
    for (std::size_t j = b.size(); j-- > 0;) {
      arrives = free[j] = std::max(free[j], arrives) + b[j];
    }
  }
  return free[0];
}

bool fits(const Chain& chain, const Balance& balance) {
  const std::vector<StageCost> stages = expected_costs(chain, balance);
  for (std::size_t j = 0; j < stages.size(); ++j) {
    if (stages[j].memory_bytes > chain.devices[j].memory_bytes) return false;
  }
  return true;
}

// Returns the minimized values in order of importance. The last ones make the
// last blocks as long as possible, from the end on.
std::vector<double> objective(const Chain& chain, const Balance& balance) {
  const std::vector<StageCost> stages = expected_costs(chain, balance);
  double slowest = 0, squares = 0, lengths = 0;
  for (std::size_t j = 0; j < stages.size(); ++j) {
    const double both = stages[j].forward + stages[j].backward;
    slowest = std::max({slowest, both, 2 * stages[j].transfer});
    squares += both * both;
    lengths += static_cast<double>(balance[j] * balance[j]);
  }
  std::vector<double> values = {simulated(stages, chain.microbatches), slowest,
                                squares, lengths};
  for (auto length = balance.rbegin(); length != balance.rend(); ++length) {
    values.push_back(-static_cast<double>(*length));
  }
  return values;
}

struct Best {
  Balance balance;  // empty if none fits
  std::vector<double> objective;
  // The smallest sufficient number of bytes for every device.
  double least_bytes = kInfinity;
};

Best best_of_all(const Chain& chain) {
  Best best;
  const auto visit = [&](const Balance& balance) {
    double largest = 0;
    for (const StageCost& stage : expected_costs(chain, balance)) {
      largest = std::max(largest, stage.memory_bytes);
    }
    best.least_bytes = std::min(best.least_bytes, largest);
    if (!fits(chain, balance)) return;
    std::vector<double> value = objective(chain, balance);
    if (best.balance.empty() || value < best.objective) {
      best.balance = balance;
      best.objective = std::move(value);
    }
  };
  for_each_balance(static_cast<int64_t>(chain.layers.size()),
                   static_cast<int64_t>(chain.devices.size()), visit);
  return best;
}

bool is_feasible(const Chain& chain) {
  try {
    balance_chain(chain);
    return true;
  } catch (const InfeasibleError&) {
    return false;
  }
}

Chain with_limit(Chain chain, double bytes) {
  for (ChainDevice& device : chain.devices) device.memory_bytes = bytes;
  return chain;
}

Chain with_factor(Chain chain, double factor) {
  for (ChainDevice& device : chain.devices) {
    // 0 times an infinite limit would be NaN.
    if (!std::isinf(device.memory_bytes)) device.memory_bytes *= factor;
  }
  return chain;
}

// Returns whether layers can be placed on devices 0 to `device` in some way,
// with a layer left for each device after them.
bool can_be_filled(const Chain& chain, std::size_t device) {
  const std::size_t layers = chain.layers.size();
  const std::size_t partitions = chain.devices.size();
  const std::function<bool(std::size_t, std::size_t)> fill =
      [&](std::size_t j, std::size_t first) {
        if (j > device) return device + 1 < partitions || first == layers;
        for (std::size_t last = first + 1; last + partitions - j - 1 <= layers;
             ++last) {
          if (expected_cost(chain, j, first, last).memory_bytes <=
                  chain.devices[j].memory_bytes &&
              fill(j + 1, last)) {
            return true;
          }
        }
        return false;
      };
  return fill(0, 0);
}

void expect_true_report(const Chain& chain, const InfeasibleError& error,
                        double least_bytes) {
  EXPECT_EQ(error.least_bytes(), least_bytes);
  EXPECT_TRUE(is_feasible(with_limit(chain, error.least_bytes())));
  EXPECT_FALSE(
      is_feasible(with_limit(chain, std::nextafter(error.least_bytes(), 0.0))));

  const double factor = error.least_factor();
  ASSERT_GT(factor, 1);
  if (std::isinf(factor)) {
    EXPECT_FALSE(is_feasible(with_factor(chain, 1e300)));
  } else {
    EXPECT_TRUE(is_feasible(with_factor(chain, factor)));
    EXPECT_FALSE(is_feasible(with_factor(chain, std::nextafter(factor, 0.0))));
  }

  ASSERT_GE(error.layer(), 0);
  ASSERT_LT(error.layer(), static_cast<int64_t>(chain.layers.size()));
  EXPECT_THAT(error.what(),
              HasSubstr("layer " + std::to_string(error.layer()) + " "));
  const auto is_too_large = [&](const ChainLayer& layer) {
    for (std::size_t j = 0; j < chain.devices.size(); ++j) {
      if (layer.resident_bytes + chain.graphs_kept[j] * layer.saved_bytes <=
          chain.devices[j].memory_bytes) {
        return false;
      }
    }
    return true;
  };
  const auto too_large =
      std::find_if(chain.layers.begin(), chain.layers.end(), is_too_large);
  if (too_large != chain.layers.end()) {
    EXPECT_EQ(error.layer(), too_large - chain.layers.begin());
    EXPECT_EQ(error.device(), -1);
  } else {
    ASSERT_GE(error.device(), 0);
    EXPECT_FALSE(can_be_filled(chain, error.device()));
    EXPECT_TRUE(error.device() == 0 ||
                can_be_filled(chain, error.device() - 1));
  }
}

// --- Random chains.

class ChainDice {
 public:
  explicit ChainDice(unsigned seed) : random_(seed) {}

  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  // Whole numbers, whose sums and halves are exact, or arbitrary numbers.
  Chain chain(bool whole) {
    const auto time = [&](int64_t largest) {
      if (draw(0, 4) == 0) return 0.0;
      if (draw(0, 9) == 0) largest *= 5;
      const auto number = static_cast<double>(draw(0, largest));
      return whole ? number : number * std::exp(0.01 * draw(-300, 300));
    };
    const int64_t layers = draw(1, 9);
    const int64_t partitions = draw(1, std::min<int64_t>(4, layers));
    Chain chain =
        chain_of(std::vector<ChainLayer>(layers), partitions, draw(1, 6));
    const int64_t largest = draw(1, 10);
    for (ChainLayer& layer : chain.layers) {
      layer.forward = time(largest);
      layer.backward = draw(0, 1) == 0 ? 2 * layer.forward : time(2 * largest);
      layer.output_bytes = static_cast<double>(draw(0, 20));
      layer.resident_bytes = static_cast<double>(draw(0, 20));
      layer.saved_bytes = static_cast<double>(draw(0, 10));
    }
    if (layers > 1) {
      for (int64_t left = draw(0, 4); left > 0; --left) {
        const int64_t from = draw(0, layers - 2);
        chain.skips.push_back({from, draw(from + 1, layers - 1),
                               static_cast<double>(draw(0, 30))});
      }
    }
    if (draw(0, 1) == 0) chain.link.latency = time(3);
    if (draw(0, 1) == 0) {
      chain.link.seconds_per_byte = whole ? 0.25 : 0.01 * draw(1, 100);
    }
    const bool unequal = draw(0, 1) == 0;
    for (ChainDevice& device : chain.devices) {
      if (unequal) {
        const double speeds[] = {0.5, 1, 1, 2};
        device.speed = whole ? speeds[draw(0, 3)] : 0.1 * draw(5, 20);
      }
    }
    set_limits(chain);
    for (int64_t j = 0; j < partitions; ++j) {
      chain.graphs_kept[j] = draw(0, 4);
      chain.inputs_kept[j] = draw(0, 4);
    }
    if (draw(0, 1) == 0) {
      keep_for(chain, static_cast<ChainSchedule>(draw(0, 1)),
               static_cast<Checkpoint>(draw(0, 2)));
    }
    return chain;
  }

 private:
  void set_limits(Chain& chain) {
    const int64_t kind = draw(0, 3);
    if (kind == 0) return;
    const double share = static_cast<double>(draw(10, 80)) *
                         static_cast<double>(chain.layers.size()) /
                         static_cast<double>(chain.devices.size());
    for (ChainDevice& device : chain.devices) {
      device.memory_bytes = std::floor(share);
      if (kind == 1) continue;
      device.memory_bytes = std::floor(share * 0.1 * draw(2, 20));
      if (draw(0, 9) == 0) device.memory_bytes = 0;
      if (draw(0, 9) == 0) device.memory_bytes = kInfinity;
    }
  }

  std::mt19937 random_;
};

// --- Tests.

TEST(ChainTest, StageCostIsWhatTheHeaderSays) {
  Chain chain =
      chain_of({{1, 2, 3, 10, 5}, {4, 5, 7, 20, 6}, {7, 8, 9, 30, 1}}, 2, 4);
  chain.devices[1].speed = 2;
  chain.link = {0.5, 0.25};
  chain.skips = {{0, 2, 100}, {0, 1, 1000}, {1, 2, 3000}};
  chain.graphs_kept = {2, 3};
  chain.inputs_kept = {4, 5};

  const StageCost first = stage_cost(chain, 0, 0, 2);
  EXPECT_EQ(first.forward, 5);
  EXPECT_EQ(first.backward, 7);
  EXPECT_EQ(first.transfer, 0);
  EXPECT_EQ(first.memory_bytes, 30 + 2 * 11);

  // Of the three skips, one enters the partition and one stays within the
  // other.
  chain.skips[2].stashed_by = 0;
  const StageCost second = stage_cost(chain, 1, 2, 3);
  EXPECT_EQ(second.forward, 3.5);
  EXPECT_EQ(second.backward, 4);
  EXPECT_EQ(second.transfer, 0.5 + 0.25 * (7 + 100 + 3000));
  EXPECT_EQ(second.memory_bytes, 30 + 3 * 1 + 5 * (7 + 100 + 3000));

  chain.skips[2].stashed_by = 1;
  EXPECT_EQ(stage_cost(chain, 1, 1, 3).transfer, 0.5 + 0.25 * (3 + 1100));
}

TEST(ChainTest, MakespanIsThatOfTheSchedule) {
  ChainDice dice(0);
  for (int trial = 0; trial < 2000; ++trial) {
    const Chain chain = dice.chain(true);
    for_each_balance(static_cast<int64_t>(chain.layers.size()),
                     static_cast<int64_t>(chain.devices.size()),
                     [&](const Balance& balance) {
                       ASSERT_EQ(makespan(chain, balance),
                                 simulated(expected_costs(chain, balance),
                                           chain.microbatches));
                     });
  }
}

TEST(ChainTest, KeepsWhatTheScheduleKeeps) {
  Chain chain = chain_of_times(std::vector<double>(4, 1), 4, 3);
  const auto kept = [&](ChainSchedule schedule, Checkpoint checkpoint) {
    keep_for(chain, schedule, checkpoint);
    return std::make_pair(chain.graphs_kept, chain.inputs_kept);
  };
  using Pair = std::pair<Balance, Balance>;
  const auto fill_drain = ChainSchedule::kFillDrain;
  const auto in_turns = ChainSchedule::kOneForwardOneBackward;
  EXPECT_EQ(kept(fill_drain, Checkpoint::kNever),
            Pair({3, 3, 3, 3}, {3, 3, 3, 3}));
  EXPECT_EQ(kept(fill_drain, Checkpoint::kAlways),
            Pair({1, 1, 1, 1}, {3, 3, 3, 3}));
  EXPECT_EQ(kept(fill_drain, Checkpoint::kExceptLast),
            Pair({1, 1, 1, 1}, {3, 3, 3, 3}));
  EXPECT_EQ(kept(in_turns, Checkpoint::kNever),
            Pair({3, 3, 2, 1}, {3, 3, 2, 1}));
  EXPECT_EQ(kept(in_turns, Checkpoint::kAlways),
            Pair({1, 1, 1, 1}, {3, 3, 2, 1}));
  EXPECT_EQ(kept(in_turns, Checkpoint::kExceptLast),
            Pair({2, 2, 2, 1}, {3, 3, 2, 1}));
}

TEST(ChainTest, IsThePlainSolverWhereNothingElseMatters) {
  EXPECT_THAT(balance_chain(chain_of_times({1, 2, 3, 4, 5, 6}, 2, 4)),
              ElementsAre(4, 2));
  EXPECT_THAT(balance_chain(chain_of_times({1, 1, 1, 1, 1}, 3, 4)),
              ElementsAre(1, 2, 2));
  EXPECT_THAT(balance_chain(chain_of_times({0, 0, 0, 0}, 2, 1)),
              ElementsAre(2, 2));
}

TEST(ChainTest, MakesTheLastBlockLongerWhereAllElseIsEqual) {
  // The largest times are 3 + 4 or 4 + 3; the second chain is the mirrored
  // first.
  EXPECT_THAT(balance_chain(chain_of({{3, 2}, {1, 1}, {2, 3}}, 2, 2)),
              ElementsAre(1, 2));
  EXPECT_THAT(balance_chain(chain_of({{2, 3}, {1, 1}, {3, 2}}, 2, 2)),
              ElementsAre(1, 2));
}

TEST(ChainTest, GivesAFasterDeviceMore) {
  Chain chain = chain_of_times(std::vector<double>(12, 1), 2, 100);
  chain.devices[1].speed = 2;
  EXPECT_THAT(balance_chain(chain), ElementsAre(4, 8));
}

TEST(ChainTest, CutsWhereLittleIsCopied) {
  Chain chain = chain_of_times(std::vector<double>(6, 1), 2, 8);
  for (ChainLayer& layer : chain.layers) layer.output_bytes = 100;
  chain.layers[1].output_bytes = 1;
  chain.link.seconds_per_byte = 1;
  EXPECT_THAT(balance_chain(chain), ElementsAre(2, 4));
  // The cut is not where a skip tensor passes.
  chain.layers[3].output_bytes = 2;
  chain.skips = {{0, 2, 50}};
  EXPECT_THAT(balance_chain(chain), ElementsAre(4, 2));
}

TEST(ChainTest, RespectsMemory) {
  EXPECT_THAT(balance_chain(chain_of_bytes({10, 10, 10, 40}, 2, 70)),
              ElementsAre(2, 2));
  EXPECT_THAT(balance_chain(chain_of_bytes({10, 10, 10, 40}, 2, 49)),
              ElementsAre(3, 1));
}

TEST(ChainTest, EqualsExhaustiveSearch) {
  ChainDice dice(1);
  int infeasible = 0, bound = 0, better = 0;
  for (int trial = 0; trial < 10000; ++trial) {
    const Chain chain = dice.chain(/*whole=*/true);
    const Best best = best_of_all(chain);
    try {
      ASSERT_EQ(balance_chain(chain), best.balance) << "trial " << trial;
    } catch (const InfeasibleError& error) {
      ++infeasible;
      ASSERT_TRUE(best.balance.empty()) << error.what();
      expect_true_report(chain, error, best.least_bytes);
      ASSERT_FALSE(HasFailure()) << "trial " << trial << ": " << error.what();
      continue;
    }
    if (balance_chain(with_limit(chain, kInfinity)) != best.balance) ++bound;
    std::vector<double> both;
    for (const ChainLayer& layer : chain.layers) {
      both.push_back(layer.forward + layer.backward);
    }
    const Balance plain =
        balance_cost(both, static_cast<int64_t>(chain.devices.size()));
    if (fits(chain, plain)) {
      ASSERT_LE(makespan(chain, best.balance), makespan(chain, plain));
      if (makespan(chain, best.balance) < makespan(chain, plain)) ++better;
    }
  }
  // Otherwise the comparison would show little.
  EXPECT_GT(infeasible, 1000);
  EXPECT_GT(bound, 500);
  EXPECT_GT(better, 1000);
}

TEST(ChainTest, EqualsExhaustiveSearchOverFractions) {
  ChainDice dice(2);
  int feasible = 0;
  for (int trial = 0; trial < 10000; ++trial) {
    const Chain chain = dice.chain(/*whole=*/false);
    const Best best = best_of_all(chain);
    if (best.balance.empty()) {
      ASSERT_FALSE(is_feasible(chain)) << "trial " << trial;
      continue;
    }
    ++feasible;
    const Balance balance = balance_chain(chain);
    ASSERT_TRUE(fits(chain, balance)) << "trial " << trial;
    ASSERT_NEAR(makespan(chain, balance), best.objective[0],
                1e-9 * best.objective[0])
        << "trial " << trial;
  }
  EXPECT_GT(feasible, 5000);
}

TEST(ChainTest, EqualsFillDrainWithoutCopies) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<ChainLayer> layers(20 + random() % 40);
    std::vector<double> forward, backward;
    for (ChainLayer& layer : layers) {
      forward.push_back(layer.forward = random() % 100);
      backward.push_back(layer.backward = random() % 200);
    }
    const auto partitions = static_cast<int64_t>(1 + random() % 8);
    const Balance balance = balance_chain(chain_of(layers, partitions, 8));
    const Balance expected =
        balance_fill_drain(forward, backward, partitions, 8);
    ASSERT_EQ(fill_drain_time(forward, backward, balance, 8),
              fill_drain_time(forward, backward, expected, 8));
  }
}

TEST(ChainTest, TakesTimesOfAnyMagnitude) {
  for (double time : {1e300, 1e-300, 5e-324}) {
    EXPECT_THAT(
        balance_chain(chain_of_times(std::vector<double>(6, time), 3, 4)),
        ElementsAre(2, 2, 2))
        << time;
  }
  Chain chain = chain_of_times({0, 0, 0, 0}, 2, 4);
  chain.link = {1e300, 1e-300};
  chain.layers[0].output_bytes = 1e300;
  EXPECT_THAT(balance_chain(chain), ElementsAre(2, 2));
  chain.devices[1].speed = 1e-300;
  EXPECT_THAT(balance_chain(chain), ElementsAre(2, 2));
}

TEST(ChainTest, SaysWhichLayerIsTooLarge) {
  try {
    balance_chain(chain_of_bytes({10, 10, 300, 10}, 2, 200));
    FAIL() << "no error";
  } catch (const InfeasibleError& error) {
    EXPECT_EQ(error.layer(), 2);
    EXPECT_EQ(error.device(), -1);
    EXPECT_EQ(error.least_bytes(), 310);
    EXPECT_EQ(error.least_factor(), 1.55);
    EXPECT_STREQ(
        error.what(),
        "no cut of 4 layers into 2 partitions respects the memory limits: "
        "layer 2 is too large for every device by itself; a cut exists if "
        "every device has 310 bytes");
  }
}

TEST(ChainTest, SaysWhichDeviceIsTooSmall) {
  Chain chain = chain_of_bytes({10, 10, 10, 10, 10, 10}, 3, 10);
  chain.devices[0].memory_bytes = 32;
  chain.devices[2].memory_bytes = 16;
  try {
    balance_chain(chain);
    FAIL() << "no error";
  } catch (const InfeasibleError& error) {
    EXPECT_EQ(error.layer(), 5);
    EXPECT_EQ(error.device(), 2);
    EXPECT_EQ(error.least_bytes(), 20);
    EXPECT_EQ(error.least_factor(), 1.25);
    EXPECT_STREQ(
        error.what(),
        "no cut of 6 layers into 3 partitions respects the memory limits: "
        "layer 5 does not fit on device 2 of 16 bytes, even if the devices "
        "before it take as many layers as they can; a cut exists if every "
        "device has 1.25 times its memory");
  }
}

TEST(ChainTest, RefusesWhatCannotBe) {
  const Chain good = chain_of_times({1, 2, 3}, 2, 4);
  const auto error_with = [&](const std::function<void(Chain&)>& change) {
    Chain chain = good;
    change(chain);
    return error_of([&] { balance_chain(chain); });
  };
  EXPECT_EQ(error_with([](Chain&) {}), "no error");
  EXPECT_THAT(error_with([](Chain& c) { c.layers[1].forward = -1; }),
              HasSubstr("forward of layer 1 is -1"));
  EXPECT_THAT(error_with([](Chain& c) { c.layers[1].backward = kInfinity; }),
              HasSubstr("backward of layer 1 is inf"));
  EXPECT_THAT(
      error_with([](Chain& c) { c.layers[2].output_bytes = std::nan(""); }),
      HasSubstr("output_bytes of layer 2 is nan"));
  EXPECT_THAT(error_with([](Chain& c) { c.layers[0].resident_bytes = -2; }),
              HasSubstr("resident_bytes of layer 0 is -2"));
  EXPECT_THAT(error_with([](Chain& c) { c.layers[0].saved_bytes = -2; }),
              HasSubstr("saved_bytes of layer 0 is -2"));
  EXPECT_THAT(error_with([](Chain& c) {
                c.skips = {{0, 1, 0}, {1, 1, 0}};
              }),
              HasSubstr("skip 1 goes from layer 1 to layer 1"));
  EXPECT_THAT(error_with([](Chain& c) {
                c.skips = {{-1, 1, 0}};
              }),
              HasSubstr("skip 0 goes from layer -1 to layer 1"));
  EXPECT_THAT(error_with([](Chain& c) {
                c.skips = {{1, 3, 0}};
              }),
              HasSubstr("skip 0 goes from layer 1 to layer 3"));
  EXPECT_THAT(error_with([](Chain& c) {
                c.skips = {{0, 1, -5}};
              }),
              HasSubstr("bytes of skip 0 is -5"));
  EXPECT_THAT(error_with([](Chain& c) { c.devices[1].speed = 0; }),
              HasSubstr("speed of device 1 is 0"));
  EXPECT_THAT(error_with([](Chain& c) { c.devices[1].speed = kInfinity; }),
              HasSubstr("speed of device 1 is inf"));
  EXPECT_THAT(error_with([](Chain& c) { c.devices[0].memory_bytes = -1; }),
              HasSubstr("memory_bytes of device 0 is -1"));
  EXPECT_THAT(
      error_with([](Chain& c) { c.devices[0].memory_bytes = std::nan(""); }),
      HasSubstr("memory_bytes of device 0 is nan"));
  EXPECT_THAT(error_with([](Chain& c) { c.link.latency = -1; }),
              HasSubstr("latency of the link is -1"));
  EXPECT_THAT(error_with([](Chain& c) { c.link.seconds_per_byte = -1; }),
              HasSubstr("seconds_per_byte of the link is -1"));
  EXPECT_THAT(error_with([](Chain& c) { c.microbatches = 0; }),
              HasSubstr("there are 0 micro-batches"));
  EXPECT_THAT(error_with([](Chain& c) { c.graphs_kept.pop_back(); }),
              HasSubstr("graphs_kept has 1 numbers for 2 devices"));
  EXPECT_THAT(error_with([](Chain& c) { c.inputs_kept[1] = -3; }),
              HasSubstr("inputs_kept of partition 1 is -3"));
  EXPECT_THAT(error_with([](Chain& c) { c.devices.clear(); }),
              HasSubstr("3 layers into 0 partitions"));
  EXPECT_THAT(error_with([](Chain& c) { c.devices.resize(4); }),
              HasSubstr("3 layers into 4 partitions"));
}

TEST(ChainTest, RefusesBlocksAndBalancesThatAreNone) {
  Chain chain = chain_of_times({1, 2, 3}, 2, 4);
  const auto block_error = [&](int64_t partition, int64_t first, int64_t last) {
    return error_of([&] { stage_cost(chain, partition, first, last); });
  };
  EXPECT_EQ(block_error(1, 1, 3), "no error");
  EXPECT_THAT(block_error(2, 0, 1), HasSubstr("no partition 2 of 2"));
  EXPECT_THAT(block_error(-1, 0, 1), HasSubstr("no partition -1 of 2"));
  EXPECT_THAT(block_error(1, 2, 2), HasSubstr("no block [2, 2) of 3 layers"));
  EXPECT_THAT(block_error(1, 2, 4), HasSubstr("no block [2, 4) of 3 layers"));
  EXPECT_THAT(block_error(0, -1, 2), HasSubstr("no block [-1, 2)"));
  EXPECT_THAT(block_error(1, 0, 2), HasSubstr("cannot begin at layer 0"));

  const auto balance_error = [&](const Balance& balance) {
    return error_of([&] { makespan(chain, balance); });
  };
  EXPECT_EQ(balance_error({1, 2}), "no error");
  EXPECT_THAT(balance_error({3}), HasSubstr("1 partitions for 2 devices"));
  EXPECT_THAT(balance_error({1, 1}), HasSubstr("2 layers in all"));
  EXPECT_THAT(balance_error({3, 0}), HasSubstr("partition 1 has 0 layers"));

  EXPECT_THAT(error_of([] { makespan(std::vector<StageCost>{}, 1); }),
              HasSubstr("no stages"));
  EXPECT_THAT(error_of([] { makespan({StageCost()}, 0); }),
              HasSubstr("0 micro-batches"));
  chain.microbatches = 0;
  const auto keep = [&] {
    keep_for(chain, ChainSchedule::kFillDrain, Checkpoint::kNever);
  };
  EXPECT_THAT(error_of(keep), HasSubstr("0 micro-batches"));
  chain.devices.clear();
  EXPECT_THAT(error_of(keep), HasSubstr("no devices"));
}

}  // namespace
}  // namespace gpipe::balancing
