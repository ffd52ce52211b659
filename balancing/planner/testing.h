// Problems, cuts and errors for the tests of the planner and of the solvers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balancing/planner/problem.h"
#include "gpipe/testing/thrown.h"

namespace gpipe::balancing::planner {

// Returns a problem of equal ranks with free copies, and layers that take
// `forward` seconds and a backward of twice as long, half for each part. A
// layer keeps 10 bytes, passes 6 bytes on, and has 4 bytes of parameters.
inline Problem simple_problem(const std::vector<double>& forward,
                              std::size_t ranks, int64_t microbatches,
                              std::vector<std::string> schedules) {
  Problem problem;
  Workload& workload = problem.workloads.emplace_back();
  workload.microbatches = microbatches;
  for (std::size_t k = 0; k < forward.size(); ++k) {
    Layer& layer = workload.layers.emplace_back();
    layer.forward = layer.backward_input = layer.backward_weight =
        layer.recompute = forward[k];
    layer.backward = 2 * forward[k];
    layer.output_bytes = 6;
    layer.trained_bytes = 4;
    workload.saved.push_back({10, {static_cast<int64_t>(k)}});
  }
  problem.ranks.resize(ranks);
  problem.schedules = std::move(schedules);
  problem.recomputes = {Checkpoint::kNever};
  return problem;
}

// Returns whole random numbers, so that sums are exact.
class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}

  // Returns a number from `least` to `most`.
  int64_t in(int64_t least, int64_t most) {
    const auto count = static_cast<uint32_t>(most - least + 1);
    return least + static_cast<int64_t>(random_() % count);
  }
  bool one_in(int64_t count) { return in(1, count) == 1; }

 private:
  std::mt19937 random_;
};

// Fills a workload of `layers` layers with random costs.
inline Workload random_workload(Dice& dice, std::size_t layers,
                                int64_t microbatches) {
  Workload workload;
  workload.microbatches = microbatches;
  for (std::size_t k = 0; k < layers; ++k) {
    Layer& layer = workload.layers.emplace_back();
    layer.forward = layer.recompute = static_cast<double>(dice.in(0, 12));
    layer.backward = static_cast<double>(dice.in(0, 24));
    layer.backward_input = static_cast<double>(dice.in(0, 12));
    layer.backward_weight = static_cast<double>(dice.in(0, 12));
    layer.output_bytes = static_cast<double>(dice.in(0, 8));
    layer.trained_bytes = static_cast<double>(dice.in(0, 4));
    layer.fixed_bytes = static_cast<double>(dice.in(0, 2));
  }
  const auto last = static_cast<int64_t>(layers) - 1;
  Dice weights(static_cast<unsigned>(layers));  // apart from the others
  for (std::size_t k = 0; k < 2 * layers; ++k) {
    const int64_t saver = dice.in(0, last);
    SavedBytes saved{static_cast<double>(dice.in(0, 20)), {saver}};
    if (saver < last && dice.one_in(3)) saved.savers.push_back(saver + 1);
    workload.saved.push_back(saved);
    if (weights.one_in(3)) {
      saved.bytes += static_cast<double>(weights.in(0, 6)) / 2;
      workload.saved_for_weights.push_back(saved);
    }
  }
  if (last > 0 && dice.one_in(2)) {
    const int64_t pop = dice.in(1, last);
    workload.skips.push_back(
        {dice.in(0, pop - 1), pop, static_cast<double>(dice.in(0, 9))});
  }
  return workload;
}

// Returns a small problem with some of everything: 2 or 3 unequal ranks, up to
// 6 layers, unequal links, memory limits or none, shared cores or none, sums of
// gradients or none, and four schedules, of which one may split backwards.
inline Problem random_problem(unsigned seed) {
  Dice dice(seed);
  Problem problem;
  const auto ranks = static_cast<std::size_t>(dice.in(1, 3));
  const auto layers = ranks + static_cast<std::size_t>(dice.in(0, 3));
  for (const int64_t microbatches : {dice.in(1, 3), dice.in(4, 6)}) {
    problem.workloads.push_back(random_workload(dice, layers, microbatches));
  }
  const bool limited = dice.one_in(2);
  for (std::size_t r = 0; r < ranks; ++r) {
    Rank& rank = problem.ranks.emplace_back();
    rank.speed = static_cast<double>(dice.in(1, 3));
    if (limited) rank.memory_bytes = static_cast<double>(dice.in(30, 300));
    if (dice.one_in(2))
      rank.host_bandwidth = static_cast<double>(dice.in(1, 9));
  }
  if (dice.one_in(2)) {
    for (std::size_t k = 0; k < ranks * ranks; ++k) {
      problem.links.push_back({static_cast<double>(dice.in(0, 3)),
                               static_cast<double>(dice.in(0, 4)) / 4});
    }
  }
  if (dice.one_in(4)) problem.action_seconds = 1;
  if (dice.one_in(3)) {  // replicas
    for (Rank& rank : problem.ranks) {
      rank.sum = {static_cast<double>(dice.in(0, 3)),
                  static_cast<double>(dice.in(0, 8))};
    }
  }
  if (dice.one_in(4)) problem.workers = static_cast<double>(dice.in(1, 2));
  const std::vector<std::string> names = {
      "fill-drain", "1f1b",   "eager-1f1b", "interleaved-1f1b",
      "looped-bfs", "zb-h1",  "zb-h2",      "zb-interleaved",
      "zbv",        "v-half", "v-min",      "dualpipe-v"};
  for (int k = 0; k < 4; ++k) {
    problem.schedules.push_back(
        names[static_cast<std::size_t>(dice.in(0, 11))]);
  }
  problem.stages_per_rank = {1, 2};
  problem.recomputes = {Checkpoint::kNever, Checkpoint::kExceptLast,
                        Checkpoint::kAlways, kWhereNeeded};
  problem.offload = dice.one_in(3);
  return problem;
}

}  // namespace gpipe::balancing::planner

namespace gpipe::balancing {

// Returns the text of the std::invalid_argument that `function` throws, or "no
// error".
template <typename Function>
std::string error_of(const Function& function) {
  return testing::thrown<std::invalid_argument>(function);
}

// Calls visit(balance) for each way to cut `layers` layers into `partitions`
// blocks of at least one layer. For exhaustive searches.
inline void for_each_balance(
    int64_t layers, int64_t partitions,
    const std::function<void(const std::vector<int64_t>&)>& visit) {
  std::vector<int64_t> balance;
  const std::function<void(int64_t, int64_t)> cut = [&](int64_t left,
                                                        int64_t blocks) {
    if (blocks == 1) {
      balance.push_back(left);
      visit(balance);
      balance.pop_back();
      return;
    }
    for (int64_t length = 1; length <= left - blocks + 1; ++length) {
      balance.push_back(length);
      cut(left - length, blocks - 1);
      balance.pop_back();
    }
  };
  cut(layers, partitions);
}

}  // namespace gpipe::balancing
