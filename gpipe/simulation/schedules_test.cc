// Compares simulations with the closed forms of all schedules, exactly and on
// random costs. The forms are from the papers that the headers of the schedules
// name, in the same notation: p ranks, m micro-batches, v stages per rank; f
// and b = i + w are the times of one stage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <random>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/v_shape.h"
#include "gpipe/simulation/simulate.h"

namespace gpipe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;

constexpr int kCases = 10'000;  // per schedule

// The sizes and costs of a case. They are integers, so that all sums are exact.
// Every stage takes the same time.
struct Case {
  int p, m, v;
  int f, i, w, r;  // times of F, I, W and R
  int c;           // latency
  int b() const { return i + w; }
};

void PrintTo(const Case& k, std::ostream* out) {
  *out << "p " << k.p << " m " << k.m << " v " << k.v << " f " << k.f << " i "
       << k.i << " w " << k.w << " r " << k.r << " c " << k.c;
}

Costs costs_of_case(const Case& k) {
  const auto stages = static_cast<std::size_t>(k.p) * k.v;
  Costs costs;
  costs.forward.assign(stages, k.f);
  costs.backward.assign(stages, k.b());
  costs.backward_input.assign(stages, k.i);
  costs.backward_weight.assign(stages, k.w);
  costs.recompute.assign(stages, k.r);
  costs.latency = k.c;
  return costs;
}

// A closed form of a schedule.
struct Form {
  std::function<int(const Case&)> idle;  // idle time of each rank
  std::function<int(const Case&, int rank)> in_flight = nullptr;
  // The time of one micro-batch on one stage.
  std::function<int(const Case&)> work = [](const Case& k) {
    return k.f + k.b();
  };
};

// Cases for which the closed form holds.
struct Cases {
  int v = 1;            // stages per rank; 0: 1 to 3
  bool copies = false;  // whether c may be above 0
  std::function<void(Case&)> make_hold = [](Case&) {};
};

void expect_closed_form(const std::function<Schedule(const Case&)>& schedule,
                        const Cases& cases, const Form& form) {
  std::mt19937 random(0);
  const auto draw = [&](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  for (int n = 0; n < kCases; ++n) {
    Case k;
    k.p = draw(1, 6);
    k.m = draw(1, 14);
    k.v = cases.v > 0 ? cases.v : draw(1, 3);
    k.f = draw(1, 20);
    k.i = draw(1, 20);
    k.w = draw(1, 20);
    k.r = draw(1, 20);
    k.c = cases.copies ? draw(0, 20) : 0;
    cases.make_hold(k);
    const Timeline timeline = simulate(schedule(k), costs_of_case(k));
    const int idle = form.idle(k);
    ASSERT_EQ(timeline.makespan, k.m * k.v * form.work(k) + idle)
        << ::testing::PrintToString(k);
    ASSERT_THAT(timeline.idle, Each(idle)) << ::testing::PrintToString(k);
    if (!form.in_flight) continue;
    for (int rank = 0; rank < k.p; ++rank) {
      ASSERT_EQ(timeline.peak_in_flight[rank], form.in_flight(k, rank))
          << ::testing::PrintToString(k) << ", rank " << rank;
    }
  }
}

// Returns the idle time of every schedule with whole backwards.
int bubble(const Case& k) { return (k.p - 1) * (k.f + k.b()); }

Schedule gpipe_of(const Case& k) { return fill_drain(k.p, k.m); }
Schedule one_f_one_b_of(const Case& k) {
  return one_forward_one_backward(k.p, k.m);
}
Schedule eager_of(const Case& k) {
  return eager_one_forward_one_backward(k.p, k.m);
}
Schedule interleaved_of(const Case& k) { return interleaved(k.p, k.m, k.v); }
Schedule looped_bfs_of(const Case& k) { return looped_bfs(k.p, k.m, k.v); }

int all_in_flight(const Case& k, int) { return k.m * k.v; }

TEST(ClosedForm, FillDrain) {
  expect_closed_form(
      gpipe_of, {1, true},
      {[](const Case& k) { return bubble(k) + 2 * (k.p - 1) * k.c; },
       all_in_flight});
}

TEST(ClosedForm, FillDrainWithUnequalStages) {
  std::mt19937 random(0);
  std::uniform_int_distribution<int> seconds(0, 20), sizes(1, 8);
  for (int n = 0; n < kCases; ++n) {
    const int p = sizes(random), m = sizes(random) + sizes(random) - 1;
    Costs costs;
    costs.latency = seconds(random);
    double sum = 2 * (p - 1) * costs.latency, forward = 0, backward = 0;
    for (int stage = 0; stage < p; ++stage) {
      costs.forward.push_back(seconds(random));
      costs.backward.push_back(seconds(random));
      sum += costs.forward.back() + costs.backward.back();
      forward = std::max(forward, costs.forward.back());
      backward = std::max(backward, costs.backward.back());
    }
    ASSERT_EQ(simulate(fill_drain(p, m), costs).makespan,
              sum + (m - 1) * (forward + backward));
  }
}

TEST(ClosedForm, ForwardOnly) {
  expect_closed_form([](const Case& k) { return forward_only(k.p, k.m); },
                     {1, true},
                     {[](const Case& k) { return (k.p - 1) * (k.f + k.c); },
                      all_in_flight, [](const Case& k) { return k.f; }});
}

TEST(ClosedForm, OneForwardOneBackward) {
  expect_closed_form(
      one_f_one_b_of, {1, true},
      {[](const Case& k) {
         const int hops = k.m + k.p - 2;
         return bubble(k) + 2 * k.c * (hops - hops / k.p);
       },
       [](const Case& k, int rank) { return std::min(k.m, k.p - rank); }});
}

TEST(ClosedForm, EagerOneForwardOneBackward) {
  const auto hides = [](Case& k) { k.c = std::min(k.c, (k.f + k.b()) / 2); };
  expect_closed_form(
      eager_of, {1, true, hides},
      {[](const Case& k) { return bubble(k) + 2 * (k.p - 1) * k.c; },
       [](const Case& k, int rank) {
         return std::min(k.m, 2 * (k.p - 1 - rank) + 1);
       }});
}

TEST(ClosedForm, Interleaved) {
  const auto whole = [](Case& k) { k.m = std::max(k.m, k.p); };
  expect_closed_form(
      interleaved_of, {0, false, whole},
      {bubble, [](const Case& k, int rank) {
         return std::min(
             k.m * k.v,
             2 * (k.p - 1 - rank) + (k.v - 1) * default_group(k.p, k.m) + 1);
       }});
}

TEST(ClosedForm, InterleavedInGroups) {
  const auto whole = [](Case& k) { k.m = std::max(k.m, k.p); };
  const auto group = [](const Case& k) {
    // The largest group below m that divides m, if there is one above p.
    for (int g = k.m / 2; g > k.p; --g) {
      if (k.m % g == 0) return g;
    }
    return k.m;
  };
  expect_closed_form(
      [&](const Case& k) { return interleaved(k.p, k.m, k.v, group(k)); },
      {0, false, whole},
      {bubble, [&](const Case& k, int rank) {
         return std::min(k.m * k.v,
                         2 * (k.p - 1 - rank) + (k.v - 1) * group(k) + 1);
       }});
}

TEST(ClosedForm, InterleavedWithShortCopies) {
  const auto short_copies = [](Case& k) {
    k.m = k.p * (1 + k.m % 3);
    k.c = 1 + k.c % 2;
    k.f += 8;
    k.i += 8;
  };
  expect_closed_form(
      interleaved_of, {0, true, short_copies}, {[](const Case& k) {
        return bubble(k) + (k.p > 1 ? 2 * (k.p * k.v - 1) * k.c : 0);
      }});
}

TEST(ClosedForm, LoopedBfs) {
  expect_closed_form(looped_bfs_of, {0},
                     {[](const Case& k) {
                        const int waits =
                            (k.v - 1) * std::max(0, k.p - k.m) + k.p - 1;
                        return waits * (k.f + k.b());
                      },
                      all_in_flight});
}

// With more micro-batches than ranks, the copy of a micro-batch from the last
// rank to the first is hidden behind the compute of other micro-batches.
TEST(ClosedForm, LoopedBfsWithShortCopies) {
  const auto short_copies = [](Case& k) {
    if (k.m <= k.p) return;
    k.c = std::min(k.c, (k.m - k.p) * std::min(k.f, k.b()) / k.p);
  };
  expect_closed_form(
      looped_bfs_of, {0, true, short_copies}, {[](const Case& k) {
        const int waits = (k.v - 1) * std::max(0, k.p - k.m) + k.p - 1;
        const int copies = k.m <= k.p && k.p > 1 ? k.p * k.v - 1 : k.p - 1;
        return waits * (k.f + k.b()) + 2 * copies * k.c;
      }});
}

TEST(ClosedForm, ZeroBubbleH1) {
  const auto enough = [](Case& k) { k.m = std::max(k.m, k.p); };
  expect_closed_form(
      [](const Case& k) { return zero_bubble_h1(k.p, k.m); },
      {1, false, enough},
      {[](const Case& k) {
         return (k.p - 1) * std::max({k.f, k.i, k.f + k.i - k.w});
       },
       [](const Case& k, int) { return k.p; }});
}

TEST(ClosedForm, ZeroBubbleH2) {
  const auto enough = [](Case& k) { k.m = std::max(k.m, 2 * k.p - 1); };
  expect_closed_form(
      [](const Case& k) { return zero_bubble_h2(k.p, k.m); },
      {1, false, enough},
      {[](const Case& k) {
         return (k.p - 1) * std::max({k.f, k.i - k.f, k.f + k.i - 2 * k.w});
       },
       [](const Case& k, int) { return 2 * k.p - 1; }});
}

TEST(ClosedForm, ZeroBubbleInterleaved) {
  const auto whole = [](Case& k) { k.m = std::max(k.p, k.m); };
  expect_closed_form(
      [](const Case& k) { return zero_bubble_interleaved(k.p, k.m, k.v); },
      {0, false, whole},
      {[](const Case& k) {
         return (k.p - 1) * std::max({k.f, k.i, k.f + k.i - k.w});
       },
       [](const Case& k, int) {
         return (k.v - 1) * default_group(k.p, k.m) + k.p;
       }});
}

TEST(ClosedForm, ZeroBubbleV) {
  const auto hold = [](Case& k) {
    k.m = std::max(k.m, 2 * k.p - 1);
    k.i = std::max({k.i, k.f, k.w});
  };
  expect_closed_form(
      [](const Case& k) { return zero_bubble_v(k.p, k.m); }, {2, false, hold},
      {[](const Case& k) {
         return (k.p - 1) * std::max({k.f, k.i, 2 * (k.i - k.w)});
       },
       [](const Case& k, int) { return 2 * k.p; }});
}

// Without Costs::overlap, a block takes f + b.
TEST(ClosedForm, DualPipeV) {
  const auto hold = [](Case& k) {
    k.m = std::max(k.m, 2 * k.p);
    k.i = k.f;
    k.w = std::min(k.w, k.f);
  };
  expect_closed_form([](const Case& k) { return dual_pipe_v(k.p, k.m); },
                     {2, false, hold},
                     {[](const Case& k) {
                        return (k.p - 1) * (k.f + k.b() + k.b() - 3 * k.w);
                      },
                      [](const Case& k, int) { return 2 * k.p + 1; }});
}

// With overlap, ranks with more blocks have less work.
TEST(ClosedForm, DualPipeVWithOverlap) {
  Costs costs = costs_of_case({4, 9, 2, 12, 12, 3, 0, 0});
  costs.overlap = 0.5;
  const Timeline timeline = simulate(dual_pipe_v(4, 9), costs);
  EXPECT_THAT(timeline.idle, ElementsAre(69, 75, 81, 81));
  for (int p = 1; p <= 6; ++p) {
    for (int m = 2 * p; m <= 2 * p + 6; ++m) {
      for (const int w : {0, 3, 12}) {
        const Case k = {p, m, 2, 12, 12, w, 0, 0};
        costs = costs_of_case(k);
        costs.overlap = 0.5;
        const int block = k.f + k.b() - k.f / 2;
        EXPECT_EQ(simulate(dual_pipe_v(p, m), costs).idle[p - 1],
                  (p - 1) * (block + k.b() - 3 * w))
            << ::testing::PrintToString(k);
      }
    }
  }
}

// The idle times are those of the code of the paper's authors, for f = i = w.
// So there are no random costs.
TEST(ClosedForm, VHalfAndVMin) {
  static constexpr int kRanks[] = {2, 4, 6, 8};
  static constexpr int kIdleHalf[] = {1, 5, 11, 17};
  static constexpr int kIdleMin[] = {3, 11, 17, 27};
  for (int n = 0; n < 4; ++n) {
    const int p = kRanks[n];
    for (int m = p; m <= 4 * p; ++m) {
      for (const int time : {1, 7}) {
        const Case k = {p, m, 2, time, time, time, time, 0};
        const Timeline half = simulate(v_half(p, m), costs_of_case(k));
        const Timeline min = simulate(v_min(p, m), costs_of_case(k));
        EXPECT_EQ(half.makespan, (6 * m + kIdleHalf[n]) * time)
            << p << " " << m;
        EXPECT_EQ(min.makespan, (6 * m + kIdleMin[n]) * time) << p << " " << m;
        EXPECT_THAT(half.peak_in_flight, Each(Le(p + 2)));
        EXPECT_THAT(min.peak_in_flight, Each(Le(2 * ((p + 4) / 3))));
      }
    }
  }
}

bool always(int) { return true; }

double makespan(const Schedule& schedule, RecomputePlacement placement,
                const Costs& costs) {
  return simulate(with_recompute(schedule, always, placement), costs).makespan;
}

TEST(Recompute, AheadMayGainOrLose) {
  Costs unequal;
  unequal.forward = unequal.recompute = {1, 2, 4, 2, 3, 1};
  unequal.backward = {6, 4, 2, 8, 8, 3};
  EXPECT_EQ(makespan(interleaved(3, 3, 2), RecomputePlacement::kBeforeBackward,
                     unequal),
            82);
  EXPECT_EQ(makespan(interleaved(3, 3, 2), RecomputePlacement::kAhead, unequal),
            80);
  // 2 ranks, 3 micro-batches, f = 1, b = 2, recompute 1, latency 1. With
  // kAhead, R delays the last forward of rank 0, for which rank 1 waits.
  const Costs copies = costs_of_case({2, 3, 1, 1, 1, 1, 1, 1});
  const Schedule schedule = one_forward_one_backward(2, 3);
  EXPECT_EQ(makespan(schedule, RecomputePlacement::kBeforeBackward, copies),
            18);
  EXPECT_EQ(makespan(schedule, RecomputePlacement::kAhead, copies), 19);
  EXPECT_EQ(makespan(schedule, RecomputePlacement::kWithBackward, copies), 20);
}

// A late recompute makes every backward longer.
TEST(ClosedForm, FillDrainWithLateRecompute) {
  expect_closed_form(
      [](const Case& k) {
        return with_recompute(fill_drain(k.p, k.m), always,
                              RecomputePlacement::kWithBackward);
      },
      {1, true},
      {[](const Case& k) { return bubble(k) + (k.p - 1) * (k.r + 2 * k.c); },
       all_in_flight, [](const Case& k) { return k.f + k.b() + k.r; }});
}

// An early recompute is hidden p - 1 times.
TEST(ClosedForm, FillDrainWithEarlyRecompute) {
  const Form form = {bubble, all_in_flight,
                     [](const Case& k) { return k.f + k.b() + k.r; }};
  for (const auto placement :
       {RecomputePlacement::kBeforeBackward, RecomputePlacement::kAhead}) {
    expect_closed_form(
        [&](const Case& k) {
          return with_recompute(fill_drain(k.p, k.m), always, placement);
        },
        {1}, form);
  }
}

TEST(ClosedForm, FillDrainWithRecomputeExceptLast) {
  std::mt19937 random(0);
  std::uniform_int_distribution<int> seconds(1, 20), sizes(1, 8);
  for (int n = 0; n < kCases; ++n) {
    const Case k = {sizes(random),
                    2 * sizes(random) - 1,
                    1,
                    seconds(random),
                    seconds(random),
                    seconds(random),
                    seconds(random),
                    0};
    const Schedule schedule = with_recompute(
        fill_drain(k.p, k.m), [&](int i) { return i < k.m - 1; });
    const Timeline timeline = simulate(schedule, costs_of_case(k));
    ASSERT_EQ(timeline.makespan,
              (k.m + k.p - 1) * (k.f + k.b()) + (k.m - 1) * k.r);
    ASSERT_THAT(timeline.idle, Each(bubble(k)));
  }
}

TEST(ClosedForm, OneForwardOneBackwardWithEarlyRecompute) {
  expect_closed_form(
      [](const Case& k) {
        return with_recompute(one_forward_one_backward(k.p, k.m), always);
      },
      {1},
      {bubble,
       [](const Case& k, int rank) { return std::min(k.m, k.p - rank); },
       [](const Case& k) { return k.f + k.b() + k.r; }});
}

}  // namespace
}  // namespace gpipe
