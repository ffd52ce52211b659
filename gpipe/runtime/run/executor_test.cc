#include "gpipe/runtime/run/executor.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/order.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::internal {
namespace {

using ::gpipe::testing::error_of;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::UnorderedElementsAre;

using Names = std::vector<std::string>;
using testing::error_of;

Action action(int stage, ActionKind kind, int microbatch) {
  return {stage, kind, microbatch};
}

std::vector<c10::Device> cpus(std::size_t count) {
  return std::vector<c10::Device>(count, c10::Device(c10::kCPU));
}

// An actor whose actions call functions. It keeps a list of those that it has
// performed.
class Fake : public Actor {
 public:
  // By the text of the action. An action that is absent is always ready, and
  // does nothing.
  std::map<std::string, std::function<void()>> on_fetch, on_perform, on_place;
  std::map<std::string, std::function<bool()>> ready_if;
  std::function<void()> on_each = [] {};

  bool ready(const Action& action) override {
    const auto found = ready_if.find(to_string(action));
    return found == ready_if.end() || found->second();
  }
  void fetch(const Action& action, CopyLog* log) override {
    call(on_fetch, action);
    std::lock_guard<std::mutex> lock(mutex_);
    fetched_.push_back(to_string(action));
    logs_.insert(log);
  }
  void perform(const Action& action) override {
    on_each();
    call(on_perform, action);
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_EQ(std::ranges::count(fetched_, to_string(action)), 1);
    performed_.push_back(to_string(action));
  }
  Failure place(const Action& action) override {
    call(on_place, action);
    Failure failure;
    failure.partition = action.stage;
    failure.microbatch = action.microbatch;
    return failure;
  }

  // In the order in which they ended. Call while nothing runs.
  Names performed() const { return performed_; }
  Names performed(int stage) const {
    Names names;
    for (const std::string& each : performed_) {
      if (each.substr(0, 1) == std::to_string(stage)) names.push_back(each);
    }
    return names;
  }
  const std::set<CopyLog*>& logs() const { return logs_; }

 private:
  static void call(std::map<std::string, std::function<void()>>& functions,
                   const Action& action) {
    const auto found = functions.find(to_string(action));
    if (found != functions.end()) found->second();
  }

  std::mutex mutex_;
  Names fetched_, performed_;
  std::set<CopyLog*> logs_;
};

// Runs `schedule`. Returns the text of the exception; "" if there is none.
std::string run(Executor& executor, const Schedule& schedule, Actor& actor) {
  const std::string error = error_of([&] { executor.run(schedule, actor); });
  EXPECT_EQ(executor.last_failure().has_value(), !error.empty());
  return error;
}

TEST(Executor, OfOneRankPerformsTheActionsOfThisRankOnly) {
  for (const int rank : {0, 1, 2}) {
    Executor executor(cpus(1), 1, /*one_at_a_time=*/false,
                      /*other_workers=*/2, /*first_rank=*/rank);
    Fake actor;
    EXPECT_EQ(run(executor, fill_drain(3, 2), actor), "");
    EXPECT_THAT(actor.performed(), ElementsAreArray(actor.performed(rank)));
    EXPECT_EQ(actor.performed().size(), 4u);
  }
}

TEST(Executor, PerformsTheActionsOfEachRankInOrderOnAThreadOfItsOwn) {
  Executor executor(cpus(3), 1, /*one_at_a_time=*/false);
  const Schedule schedule = fill_drain(3, 4);
  Fake actor;
  std::mutex mutex;
  std::set<std::thread::id> threads{std::this_thread::get_id()};
  actor.on_each = [&] {
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  };
  EXPECT_EQ(run(executor, schedule, actor), "");
  EXPECT_EQ(threads.size(), 4u);
  for (int rank = 0; rank < 3; ++rank) {
    Names expected;
    for (const Action& each : schedule.ranks[rank]) {
      expected.push_back(to_string(each));
    }
    EXPECT_THAT(actor.performed(rank), ElementsAreArray(expected));
  }
}

TEST(Executor, OneAtATimeFollowsTheOrderOfTheSchedule) {
  Executor executor(cpus(2), 1, /*one_at_a_time=*/true);
  std::atomic<int> running{0};
  Fake actor;
  actor.on_each = [&] {
    EXPECT_EQ(++running, 1);
    std::this_thread::yield();
    --running;
  };
  EXPECT_EQ(run(executor, fill_drain(2, 3), actor), "");
  EXPECT_THAT(actor.performed(),
              ElementsAre("0F0", "0F1", "1F0", "0F2", "1F1", "1F2", "1B2",
                          "0B2", "1B1", "0B1", "1B0", "0B0"));
}

TEST(Executor, WaitsUntilAnActionIsReady) {
  // The first stage of micro-batch 1 waits for the last one of micro-batch 0.
  Executor executor(cpus(2), 1, false);
  std::atomic<bool> done{false};
  Fake actor;
  actor.on_perform["1F0"] = [&] { done = true; };
  actor.on_perform["0F1"] = [&] { EXPECT_TRUE(done); };
  actor.ready_if["0F1"] = [&] { return done.load(); };
  std::thread other([&] {
    while (!done) std::this_thread::yield();
    executor.notify(0);  // as for input from another process
  });
  EXPECT_EQ(run(executor, forward_only(2, 2), actor), "");
  other.join();
  EXPECT_THAT(actor.performed(0), ElementsAre("0F0", "0F1"));
}

TEST(Executor, AFusedActionWaitsForWhatTheNextOneNeeds) {
  Executor executor(cpus(1), 1, false);
  Action fused = action(0, ActionKind::kForward, 1);
  fused.fused_with_next = true;
  const Schedule schedule{{{action(0, ActionKind::kForward, 0), fused,
                            action(0, ActionKind::kBackward, 0),
                            action(0, ActionKind::kBackward, 1)}}};
  std::promise<void> asked;
  std::atomic<bool> arrived{false}, is_asked{false};
  Fake actor;
  actor.ready_if["0B0"] = [&] {
    if (!is_asked.exchange(true)) asked.set_value();
    return arrived.load();
  };
  actor.on_perform["0F1"] = [&] { EXPECT_TRUE(arrived); };
  std::thread other([&] {
    asked.get_future().wait();
    arrived = true;
    executor.notify(0);
  });
  EXPECT_EQ(run(executor, schedule, actor), "");
  other.join();
  EXPECT_THAT(actor.performed(), ElementsAre("0F0", "0F1", "0B0", "0B1"));
}

TEST(Executor, AnErrorEndsTheRunButActionsBeforeItAreStillPerformed) {
  // 1F0 comes after 0F1 and before 0F2 in the order of the schedule.
  Executor executor(cpus(2), 1, false);
  std::atomic<bool> thrown{false};
  Fake actor;
  actor.on_perform["1F0"] = [&] {
    thrown = true;
    throw std::out_of_range("no such row");
  };
  actor.ready_if["0F1"] = [&] { return thrown.load(); };
  actor.ready_if["0F2"] = [] { return false; };
  EXPECT_EQ(run(executor, fill_drain(2, 3), actor),
            "std::out_of_range: no such row");
  EXPECT_EQ(executor.last_failure()->to_string(),
            "partition 1, micro-batch 0, forward: no such row");
  EXPECT_THAT(actor.performed(), ElementsAre("0F0", "0F1"));
}

TEST(Executor, OfSeveralErrorsTheFirstInTheScheduleIsReturned) {
  // 1F0 is the first of the two in the order of the schedule.
  for (const std::string throws_first : {"1F0", "0F2"}) {
    Executor executor(cpus(2), 1, false);
    std::promise<void> both_run, thrown;
    std::atomic<int> running{0};
    Fake actor;
    for (const std::string name : {"1F0", "0F2"}) {
      actor.on_perform[name] = [&, name] {
        if (++running == 2) both_run.set_value();
        if (name == throws_first) {
          both_run.get_future().wait();
        } else {
          thrown.get_future().wait();
        }
        throw std::runtime_error(name);
      };
    }
    actor.on_place[throws_first] = [&] { thrown.set_value(); };
    EXPECT_EQ(run(executor, fill_drain(2, 3), actor),
              "std::runtime_error: 1F0");
  }
}

TEST(Executor, WhatReadyAndFetchThrowIsAnErrorOfTheAction) {
  Executor executor(cpus(2), 1, false);
  const Schedule schedule = forward_only(2, 2);
  Fake of_ready;
  of_ready.ready_if["1F1"] = []() -> bool {
    throw std::runtime_error("never comes");
  };
  EXPECT_EQ(run(executor, schedule, of_ready),
            "std::runtime_error: never comes");
  EXPECT_EQ(executor.last_failure()->place(),
            "partition 1, micro-batch 1, forward");

  Fake of_fetch;
  of_fetch.on_fetch["0F1"] = [] { throw std::runtime_error("no copy"); };
  EXPECT_EQ(run(executor, schedule, of_fetch), "std::runtime_error: no copy");
  EXPECT_EQ(executor.last_failure()->place(),
            "partition 0, micro-batch 1, forward");
  EXPECT_THAT(of_fetch.performed(0), ElementsAre("0F0"));

  Fake fine;
  EXPECT_EQ(run(executor, schedule, fine), "");
  EXPECT_EQ(fine.performed().size(), 4u);
}

TEST(Executor, OnlyAWorkerThatHasThrownIsReplaced) {
  thread_local int runs = 0;  // of this thread
  Executor executor(cpus(2), 1, false);
  const Schedule schedule = forward_only(2, 1);
  int first = 0, second = 0;
  Fake actor;
  actor.on_perform["0F0"] = [&] { first = ++runs; };
  actor.on_perform["1F0"] = [&] {
    second = ++runs;
    if (second == 1) throw std::runtime_error("once");
  };
  EXPECT_EQ(run(executor, schedule, actor), "std::runtime_error: once");
  actor.on_perform["1F0"] = [&] { second = ++runs; };
  Fake again;
  again.on_perform = actor.on_perform;
  EXPECT_EQ(run(executor, schedule, again), "");
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 1);
}

TEST(Executor, WorkersHaveTheCallersThreadLocalState) {
  Executor executor(cpus(1), 1, false);
  const Schedule schedule = forward_only(1, 1);
  for (const bool enabled : {false, true}) {
    const c10::AutoGradMode mode(enabled);
    bool seen = !enabled;
    Fake actor;
    actor.on_each = [&] {
      seen = c10::GradMode::is_enabled();
      // A cast copy of a weight that one worker makes must not reach another.
      EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    };
    EXPECT_EQ(run(executor, schedule, actor), "");
    EXPECT_EQ(seen, enabled);
  }
}

TEST(Executor, WorkersHaveTheCallersFloatingPointEnvironment) {
  Executor executor(cpus(1), 1, false);
  const Schedule schedule = forward_only(1, 1);
  for (const int rounding : {FE_UPWARD, FE_TONEAREST}) {
    const int before = std::fegetround();
    std::fesetround(rounding);
    int seen = -1;
    Fake actor;
    actor.on_each = [&] { seen = std::fegetround(); };
    EXPECT_EQ(run(executor, schedule, actor), "");
    std::fesetround(before);
    EXPECT_EQ(seen, rounding);
  }
}

TEST(Executor, TheCallersHandlerGetsTheWarningsOnTheCallersThread) {
  struct Handler : c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      texts.push_back(warning.msg());
      if (throws) throw std::runtime_error("a warning");
    }
    const std::thread::id caller = std::this_thread::get_id();
    bool throws = false;
    Names texts;
  } handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  Executor executor(cpus(2), 1, false);
  const Schedule schedule = forward_only(2, 1);
  const std::map<std::string, std::function<void()>> warn{
      {"0F0", [] { TORCH_WARN("first"); }},
      {"1F0", [] { TORCH_WARN("second"); }}};
  Fake actor;
  actor.on_perform = warn;
  EXPECT_EQ(run(executor, schedule, actor), "");
  EXPECT_THAT(handler.texts, UnorderedElementsAre("first", "second"));

  // A handler may throw. The error of an action comes before it.
  handler.throws = true;
  Fake again;
  again.on_perform = warn;
  EXPECT_EQ(error_of([&] { executor.run(schedule, again); }),
            "std::runtime_error: a warning");
  Fake fails;
  fails.on_perform = warn;
  fails.on_perform["1F0"] = [] { throw std::runtime_error("1F0"); };
  EXPECT_EQ(run(executor, schedule, fails), "std::runtime_error: 1F0");
}

TEST(Executor, RecordsEachActionAndGivesTheLogOfItsRank) {
  Executor executor(cpus(2), 1, false);
  const Schedule schedule = fill_drain(2, 2);
  Fake without;
  executor.run(schedule, without);
  EXPECT_THAT(without.logs(), ElementsAre(nullptr));

  Recording recording(cpus(2), nullptr);
  recording.begin();
  Fake actor;
  executor.run(schedule, actor, &recording);
  EXPECT_THAT(actor.logs(),
              UnorderedElementsAre(&recording.copies(0), &recording.copies(1)));
  const Timeline timeline = recording.timeline();
  for (std::size_t r = 0; r < 2; ++r) {
    std::vector<Action> actions;
    for (const Span& each : timeline.ranks[r]) actions.push_back(each.action);
    EXPECT_EQ(actions, schedule.ranks[r]);
  }
}

std::mutex ranges_mutex;
std::multiset<std::string> ranges;

TEST(Executor, ShowsEachActionToProfilers) {
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& range)
                                     -> std::unique_ptr<at::ObserverContext> {
        std::lock_guard<std::mutex> lock(ranges_mutex);
        ranges.insert(range.name());
        return nullptr;
      }).scopes({at::RecordScope::USER_SCOPE}));
  Executor executor(cpus(2), 1, false);
  Fake actor;
  executor.run(fill_drain(2, 1), actor);
  at::removeCallback(handle);
  EXPECT_THAT(ranges,
              ElementsAre("gpipe 0B0", "gpipe 0F0", "gpipe 1B0", "gpipe 1F0"));
}

TEST(Executor, RefusesACallerThatItWouldWaitFor) {
  Executor outer(cpus(1), 1, false), inner(cpus(1), 1, false);
  const Schedule schedule = forward_only(1, 1);
  const std::string refusal =
      "c10::Error: a layer or the loss calls the pipeline that it is part of, "
      "which would be a deadlock; call it between steps, or make a second "
      "pipeline of a clone() of the layers to be called";
  Names refusals;
  // The test itself does not hold the lock of enter() while it calls run().
  const auto ask = [&](Executor& executor) {
    refusals.push_back(error_of([&] { executor.enter(); }));
  };
  Fake in_inner;
  in_inner.on_each = [&] {
    ask(inner);
    ask(outer);
  };
  Fake in_outer;
  in_outer.on_each = [&] {
    ask(inner);
    ask(outer);
    EXPECT_EQ(run(inner, schedule, in_inner), "");
  };
  EXPECT_EQ(run(outer, schedule, in_outer), "");
  ask(outer);
  EXPECT_THAT(refusals, ElementsAre("", refusal, refusal, refusal, ""));
}

// Counts the actions of one worker, and throws at the action `at`.
struct Counter : Actor {
  int done = 0, at = -1;
  bool ready(const Action&) override { return true; }
  void perform(const Action&) override {
    if (done++ == at) throw std::runtime_error("no");
  }
  Failure place(const Action& action) override {
    return at_partition(action.stage, Phase::kForward);
  }
};

TEST(Executor, KeepsTheFailureOfTheLastRun) {
  Executor executor(cpus(2), 1, false);
  Schedule schedule = forward_only(2, 4);
  schedule.ranks[1].clear();
  Counter counter;
  const auto running = executor.enter();
  EXPECT_TRUE(running.owns_lock());
  counter.at = 2;
  EXPECT_THROW(executor.run(schedule, counter), std::runtime_error);
  EXPECT_EQ(counter.done, 3);
  ASSERT_TRUE(executor.last_failure());
  EXPECT_EQ(executor.last_failure()->to_string(),
            "partition 0, all micro-batches, forward: no");
  counter.at = -1;
  executor.run(schedule, counter);
  EXPECT_EQ(counter.done, 7);
  EXPECT_FALSE(executor.last_failure());
}

TEST(Executor, GivesAPlaceToWorkOutsideOfTheSchedule) {
  Executor executor(cpus(2), 1, false);
  const Failure place = at_partition(1, Phase::kGather);
  EXPECT_EQ(executor.outside_schedule(place, [] { return 7; }), 7);
  EXPECT_FALSE(executor.last_failure());
  EXPECT_EQ(error_of([&] {
              executor.outside_schedule(
                  place, [] { throw std::runtime_error("full"); });
            }),
            "std::runtime_error: full");
  EXPECT_EQ(executor.last_failure()->partition, 1);
  EXPECT_EQ(executor.last_failure()->phase, Phase::kGather);
}

TEST(Caught, WorkOnAWholeMiniBatchBelongsToAllMicrobatches) {
  EXPECT_EQ(at_partition(2, Phase::kGather).place(),
            "partition 2, all micro-batches, gather");
  EXPECT_EQ(at_partition(Failure::kAll, Phase::kGradients).place(),
            "all partitions, all micro-batches, gradients");
}

const Failure kInLayer{1, 3, Phase::kRecomputing, "5", ""};

// Returns the failure of an exception at kInLayer; `after` becomes the
// exception as the caller sees it.
template <typename Throw>
Failure caught(Throw thrown, std::string& after) {
  Failure failure;
  after = error_of([&] {
    try {
      thrown();
    } catch (...) {
      failure = caught_at(kInLayer);
      throw;
    }
  });
  EXPECT_EQ(failure.place(), kInLayer.place());
  return failure;
}

TEST(Caught, AddsThePlaceToATorchErrorOfTheSameType) {
  std::string after;
  const Failure failure =
      caught([] { TORCH_CHECK_VALUE(false, "too few rows"); }, after);
  EXPECT_EQ(failure.what, "too few rows");
  EXPECT_EQ(after,
            "c10::ValueError: too few rows (in partition 1, micro-batch 3, "
            "recompute, layer '5')");
}

TEST(Caught, LeavesOtherExceptionsAsTheyAre) {
  std::string after;
  Failure failure = caught([] { throw std::out_of_range("no row 7"); }, after);
  EXPECT_EQ(failure.what, "no row 7");
  EXPECT_EQ(after, "std::out_of_range: no row 7");
  failure = caught([] { throw 42; }, after);
  EXPECT_EQ(failure.what, "");
  EXPECT_EQ(after, "not a std::exception");
}

TEST(NewWorker, HasItsThreadsAndLeavesThoseOfOthers) {
  at::set_num_threads(3);
  std::string order;
  int threads = 0, later = 0;
  {
    const auto worker = new_worker([&] { order += "p"; }, 2);
    EXPECT_EQ(at::get_num_threads(), 3);
    std::thread([&] { later = at::get_num_threads(); }).join();
    worker->post([&] {
      order += "t";
      threads = at::get_num_threads();
    });
  }
  EXPECT_EQ(order, "pt");
  EXPECT_EQ(threads, 2);
  EXPECT_EQ(later, 3);
}

TEST(NewWorker, MadeByAWorkerLeavesTheDefaultAlone) {
  at::set_num_threads(3);
  int own = 0, later = 0;
  new_worker([] {}, 2)->post([&] {
    new_worker([] {}, 1);
    own = at::get_num_threads();
    std::thread([&] { later = at::get_num_threads(); }).join();
  });
  EXPECT_EQ(own, 2);
  EXPECT_EQ(later, 3);
}

TEST(NewWorker, OfNoNumberHasThoseOfLibTorch) {
  at::set_num_threads(3);
  int threads = 0;
  new_worker([] {}, 0)->post([&] { threads = at::get_num_threads(); });
  EXPECT_EQ(threads, 3);
}

}  // namespace
}  // namespace gpipe::internal

namespace gpipe::simulated {
namespace {

using internal::RunAhead;

class EnterTest : public SimulatedTest {};

TEST_F(EnterTest, AThreadThatBackwardsNeedWaitsForNoBackward) {
  internal::Executor executor({hpu(0)}, 1, /*one_at_a_time=*/false);
  // Enters on a thread with the name of autograd's thread for a device.
  const auto enter = [&](bool with_backward) {
    return std::async(std::launch::async, [&executor, with_backward] {
      c10::setThreadName("pt_autograd_0");
      return testing::error_of([&] { executor.enter(with_backward); });
    });
  };
  const std::string refusal =
      "c10::Error: a pipeline on accelerators is called within a backward, as "
      "by a hook of a parameter or by a function that is recomputed, for a "
      "backward of the pipeline or while one runs, which would be a deadlock: "
      "that backward needs the thread that the call occupies; call the "
      "pipeline after the outer backward";
  EXPECT_EQ(enter(true).get(), refusal);
  EXPECT_EQ(enter(false).get(), "");
  auto running = executor.enter(/*with_backward=*/true);
  EXPECT_EQ(enter(false).get(), refusal);
  running.unlock();
  EXPECT_EQ(enter(false).get(), "");
  running = executor.enter();
  auto waits = enter(false);
  running.unlock();
  EXPECT_EQ(waits.get(), "");
}

TEST_F(EnterTest, OnCpusAnyThreadWaits) {
  internal::Executor executor({c10::Device(c10::kCPU)}, 1, false);
  auto running = executor.enter(/*with_backward=*/true);
  auto waits = std::async(std::launch::async, [&] {
    c10::setThreadName("pt_autograd_0");
    return testing::error_of([&] { executor.enter(/*with_backward=*/true); });
  });
  running.unlock();
  EXPECT_EQ(waits.get(), "");
}

class RunAheadTest : public SimulatedTest {};

TEST_F(RunAheadTest, TheHostWaitsForTheSecondActionBefore) {
  const c10::DeviceGuard on_device(hpu(1));
  const c10::Stream stream = default_stream(1);
  RunAhead ahead(hpu(1));
  const auto before = host_waits();
  {
    Gate gate(stream);
    for (std::size_t k = 0; k < RunAhead::kActions; ++k) {
      ahead.wait();  // does not block
      ahead.end_action();
    }
    EXPECT_EQ(host_waits(), before);
    EXPECT_FALSE(stream.query());
  }
  ahead.wait();
  EXPECT_EQ(host_waits(), before + 1);
  for (int k = 0; k < 5; ++k) {
    ahead.end_action();
    ahead.wait();
  }
  EXPECT_EQ(host_waits(), before + 6);
}

TEST_F(RunAheadTest, ACpuIsNeverWaitedFor) {
  RunAhead ahead{c10::Device(c10::kCPU)};
  const auto before = host_waits();
  for (int k = 0; k < 5; ++k) {
    ahead.wait();
    ahead.end_action();
  }
  EXPECT_EQ(host_waits(), before);
}

}  // namespace
}  // namespace gpipe::simulated
