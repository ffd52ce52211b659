// Compares exact cuts with the recorded results of published heuristics: how
// much larger the heuristics' largest block is, how often they fail, and how
// long an exact cut takes.
//
//   bazel run //balancing:heuristics_benchmark

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "balancing/heuristics.h"
#include "balancing/solver/partition.h"

namespace {

using gpipe::balancing::balance_cost;
using gpipe::balancing::kHeuristics;
using gpipe::balancing::RecordedCase;
using Cases = std::vector<RecordedCase>;

// The results of one heuristic for the cases of one set.
struct Tally {
  int64_t blocks = 0;  // cases that it cut into blocks of at least one layer
  double ratios = 0;   // sum of its largest block / the smallest possible one
  double worst = 0;
  int64_t missed = 0;  // cases with a larger block than necessary
  int64_t did_not_end = 0;
  int64_t empty = 0;
};

void add(Tally& tally, int64_t recorded, int64_t least) {
  switch (recorded) {
    case gpipe::balancing::kDidNotEnd:
      ++tally.did_not_end;
      return;
    case gpipe::balancing::kEmptyBlock:
      ++tally.empty;
      return;
  }
  const double ratio =
      static_cast<double>(recorded) / static_cast<double>(least);
  ++tally.blocks;
  tally.ratios += ratio;
  tally.worst = std::max(tally.worst, ratio);
  tally.missed += recorded > least;
}

int64_t least_bottleneck(const RecordedCase& one) {
  // The costs are whole numbers.
  return static_cast<int64_t>(gpipe::balancing::bottleneck(
      one.costs, balance_cost(one.costs, one.partitions)));
}

// Returns the microseconds of one cut, as the mean over the cases. It is the
// minimum over kRounds rounds, since other programs can only add time.
double microseconds(const Cases& cases) {
  constexpr int kRounds = 101;
  using Clock = std::chrono::steady_clock;
  double least = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    for (const RecordedCase& one : cases) {
      // Without a use of the result, the compiler could remove the computation.
      volatile int64_t first = balance_cost(one.costs, one.partitions)[0];
      (void)first;
    }
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    least = round == 0 ? time.count() : std::min(least, time.count());
  }
  return least / static_cast<double>(cases.size());
}

// Groups the cases by set.
std::vector<Cases> by_set(const Cases& cases) {
  std::vector<Cases> sets;
  for (const RecordedCase& one : cases) {
    auto set = std::ranges::find_if(
        sets, [&](const Cases& other) { return other[0].set == one.set; });
    if (set == sets.end()) set = sets.insert(sets.end(), Cases());
    set->push_back(one);
  }
  return sets;
}

void print_profiles(const Cases& profiles) {
  std::printf("| profile | layers | partitions |");
  for (const char* name : kHeuristics) std::printf(" %s |", name);
  std::printf(" exact cut, us |\n| --- | ---: | ---: |");
  for (std::size_t j = 0; j < kHeuristics.size(); ++j) std::printf(" ---: |");
  std::printf(" ---: |\n");
  for (const RecordedCase& one : profiles) {
    std::printf("| %s | %zu | %d |", one.set.c_str(), one.costs.size(),
                static_cast<int>(one.partitions));
    const int64_t least = least_bottleneck(one);
    for (int64_t recorded : one.bottlenecks) {
      if (recorded < 0) {
        std::printf(" none |");
      } else {
        std::printf(" %.3f |",
                    static_cast<double>(recorded) / static_cast<double>(least));
      }
    }
    std::printf(" %.1f |\n", microseconds({one}));
  }
}

void print_sets(const std::vector<Cases>& sets) {
  std::printf(
      "| set | cases | heuristic | mean | worst | missed | did not end | "
      "empty block | exact cut, us |\n"
      "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Cases& cases : sets) {
    std::vector<Tally> tallies(kHeuristics.size());
    for (const RecordedCase& one : cases) {
      const int64_t least = least_bottleneck(one);
      for (std::size_t j = 0; j < tallies.size(); ++j) {
        add(tallies[j], one.bottlenecks[j], least);
      }
    }
    const double time = microseconds(cases);
    for (std::size_t j = 0; j < tallies.size(); ++j) {
      const Tally& tally = tallies[j];
      std::printf("| %s | %zu | %s | %.3f | %.3f | %d | %d | %d | %.1f |\n",
                  cases[0].set.c_str(), cases.size(), kHeuristics[j],
                  tally.ratios / static_cast<double>(tally.blocks), tally.worst,
                  static_cast<int>(tally.missed),
                  static_cast<int>(tally.did_not_end),
                  static_cast<int>(tally.empty), time);
    }
  }
}

}  // namespace

int main() {
  const Cases profiles = gpipe::balancing::recorded_profiles();
  Cases random = gpipe::balancing::recorded_random();
  std::vector<Cases> sets = by_set(profiles);
  for (Cases& set : by_set(random)) sets.push_back(std::move(set));
  for (RecordedCase& one : random) one.set = "random, all";
  sets.push_back(std::move(random));

  std::printf("Largest block, divided by the least possible one:\n\n");
  print_profiles(profiles);
  std::printf("\n");
  print_sets(sets);
}
