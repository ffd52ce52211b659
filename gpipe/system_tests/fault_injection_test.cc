// Tests that every step may fail at every place: at each fault point of each
// cell, in all modes and schedules, with all kinds of exceptions. The step must
// not hang, nothing may be left over, and the error must name the place. The
// next step must have the same bits as a step without an earlier failure.
//
// Without GPIPE_THOROUGH=1, every 15th place of a site is tested on the CPU and
// every fifth on an accelerator, with the kinds of exceptions in turn.
// GPIPE_FAULT_EVERY=n: tests every n-th place.
// GPIPE_FAULT_KINDS=all: tests each place with each kind instead of in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/system_tests/places.h"
#include "gpipe/system_tests/trial.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/process.h"

namespace gpipe::faults {
namespace {

using testing::device;
using testing::error_of;
using testing::rounds;

// Returns a part of the settings, because a step on an accelerator takes tens
// of times as long as on the CPU. The list repeats after 12 settings (three
// modes, four numbers of micro-batches) and has deferred BatchNorm every other
// time. A stride that shares a divisor with 12 would skip some combinations.
std::vector<Setting> settings_of_an_accelerator() {
  const auto all = settings({"", "1f1b", "zb-interleaved"});
  std::vector<Setting> chosen;
  for (std::size_t s = 0; s < all.size(); s += 5) chosen.push_back(all[s]);
  return chosen;
}

struct Tally {
  std::array<int64_t, 4> injections{};  // by kind of exception
  // Sums over all kinds.
  int64_t silent = 0, retyped = 0, unnamed = 0, leaks = 0, wrong = 0;

  int64_t all() const {
    int64_t sum = 0;
    for (const int64_t each : injections) sum += each;
    return sum;
  }
  int64_t bad() const { return silent + retyped + unnamed + leaks + wrong; }
  void operator+=(const Tally& other) {
    for (std::size_t k = 0; k < injections.size(); ++k) {
      injections[k] += other.injections[k];
    }
    silent += other.silent;
    retyped += other.retyped;
    unnamed += other.unnamed;
    leaks += other.leaks;
    wrong += other.wrong;
  }
};

int64_t number(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoll(text) : otherwise;
}

// Returns whether the exception ends the process. On an accelerator a backward
// runs on the engine's device threads. These threads catch only std::exception,
// also in plain LibTorch.
bool ends_the_process(const Place& place, Thrown thrown) {
  return !device().is_cpu() && thrown == Thrown::kForeign &&
         (place.site == "layer's backward" || place.site == "gradient sum");
}

void inject(Trial& trial, const Place& place, Thrown thrown, Tally& tally) {
  ++tally.injections[static_cast<std::size_t>(thrown)];
  std::string text;
  const auto complain = [&](int64_t& count, const std::string& what) {
    ++count;
    text += what + "; ";
  };
  {
    watch(place, thrown);
    std::string error;
    const auto run = [&] { error = error_of([&] { trial.step(); }); };
    if (thrown == Thrown::kForeign) {
      // A thread of its own, since LibTorch's engine does not support such
      // exceptions. It counts the calling thread as still inside of backward.
      // After 60 such calls it uses threads that do not catch the exception.
      std::thread(run).join();
    } else {
      run();
    }
    end_watch();
    const Failure expected = place.failure();
    const auto failure = trial.pipeline()->last_failure();
    if (!has_thrown() || error.empty()) complain(tally.silent, "no error");
    if (!failure || failure->partition != expected.partition ||
        failure->microbatch != expected.microbatch ||
        failure->phase != expected.phase) {
      complain(tally.unnamed, "named " + (failure ? failure->place()
                                                  : std::string("nothing")));
    } else if (error != text_of(thrown, *failure)) {
      complain(tally.retyped, "arrived as " + error);
    }
  }
  const Residue residue = trial.residue();
  if (residue.leak) ++tally.leaks;
  if (residue.wrong) ++tally.wrong;
  text += residue.text;
  if (!text.empty()) {
    ADD_FAILURE() << to_string(thrown) << " at " << place.to_string() << ": "
                  << text;
  }
}

void print(const std::map<std::string, Tally>& by_site) {
  std::vector<std::vector<std::string>> rows{
      {"site", "user's", "bad_alloc", "OutOfMemory", "throw 42", "injections",
       "hangs", "leaks", "wrong", "unnamed", "other type", "silent"}};
  Tally sum;
  const auto add = [&](const std::string& site, const Tally& tally) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(site);
    for (const int64_t each : tally.injections) {
      row.push_back(std::to_string(each));
    }
    // The 0 stands for hangs, because a hang ends the process.
    for (const int64_t each :
         {tally.all(), int64_t{0}, tally.leaks, tally.wrong, tally.unnamed,
          tally.retyped, tally.silent}) {
      row.push_back(std::to_string(each));
    }
  };
  for (const auto& [site, tally] : by_site) {
    add(site, tally);
    sum += tally;
  }
  add("all", sum);
  for (const std::string& line : align_columns(rows, "lrrrrrrrrrrr")) {
    std::cout << line << "\n";
  }
}

TEST(FaultInjection, AnAcceleratorGetsSettingsOfAllKinds) {
  std::set<std::pair<Checkpoint, int>> by_microbatches;
  std::set<std::pair<Checkpoint, bool>> by_batch_norm;  // microbatches > 1
  const auto chosen = settings_of_an_accelerator();
  for (const Setting& each : chosen) {
    by_microbatches.emplace(each.mode, each.microbatches);
    if (each.microbatches == 1) continue;
    by_batch_norm.emplace(each.mode, each.deferred_batch_norm);
  }
  EXPECT_EQ(chosen.size(), 24u);
  EXPECT_EQ(by_microbatches.size(), 12u) << "three modes, 1, 2, 3 and 5";
  EXPECT_EQ(by_batch_norm.size(), 6u) << "three modes, both";
}

TEST(FaultInjection, EveryPlaceOfEveryStepFailsOnceAndLeavesNothing) {
  const int64_t every =
      number("GPIPE_FAULT_EVERY", rounds(device().is_cpu() ? 15 : 5, 1));
  const char* const kinds = std::getenv("GPIPE_FAULT_KINDS");
  const bool all_kinds = kinds && std::string(kinds) == "all";
  const auto all = device().is_cpu()
                       ? settings({"", "fill-drain", "1f1b", "interleaved-1f1b",
                                   "zb-h1", "zb-interleaved", "zbv"})
                       : settings_of_an_accelerator();
  Watchdog watchdog(std::chrono::seconds(60), what_threads_do);
  std::map<std::string, Tally> by_site;
  struct Count {
    int64_t seen = 0, chosen = 0;
  };
  std::map<std::string, Count> counts;  // by site
  int64_t injections = 0;
  for (std::size_t s = 0; s < all.size(); ++s) {
    SCOPED_TRACE(all[s].describe());
    Trial trial(all[s]);
    watch();
    trial.step();
    std::vector<Place> places = end_watch();
    std::sort(places.begin(), places.end());
    for (const Place& place : places) {
      // The first eight places of a site are always tested: each kind twice.
      Count& count = counts[place.site];
      const int64_t index = count.seen++;
      if (index >= 8 && index % every != 0) continue;
      const int64_t turn = count.chosen++ % 4;
      for (const Thrown thrown : kThrown) {
        if (!all_kinds && static_cast<int64_t>(thrown) != turn) continue;
        if (ends_the_process(place, thrown)) continue;
        watchdog.feed();
        inject(trial, place, thrown, by_site[place.site]);
        ++injections;
      }
      ASSERT_LE(by_site[place.site].bad(), 20) << "and so on";
    }
  }
  print(by_site);
  EXPECT_EQ(by_site.size(), 21u);
  if (!all_kinds) {
    for (const auto& [site, tally] : by_site) {
      for (const Thrown thrown : kThrown) {
        if (!device().is_cpu() && thrown == Thrown::kForeign) continue;
        EXPECT_GT(tally.injections[static_cast<std::size_t>(thrown)], 0)
            << to_string(thrown) << " at " << site;
      }
    }
  }
  if (every == 1 && !all_kinds && device().is_cpu()) {
    EXPECT_EQ(injections, 33858);
  }
}

}  // namespace
}  // namespace gpipe::faults
