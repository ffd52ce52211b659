#include "gpipe/testing/simulated/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace gpipe::simulated {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Ne;
using ::testing::SizeIs;

// Returns a queue that is never destroyed, because a queue lives as long as the
// process.
Queue& new_queue(
    std::uint64_t number = 0, std::function<void()> prepare = [] {}) {
  return *new Queue(number, std::move(prepare));
}

// Blocks until the queue has run all its tasks.
void wait(Queue& queue) {
  const auto there = std::make_shared<std::promise<void>>();
  queue.push([there] { there->set_value(); });
  there->get_future().wait();
}

// Returns the delays of `count` tasks in a queue with this number and these
// delays. The delays are recorded and not slept.
std::vector<double> delays_of(std::uint64_t number, const Delays& delays,
                              int count, bool delayed = true) {
  // `slept` and `queue` belong to the queue's thread.
  auto* slept = new std::vector<double>();
  auto& queue = *new Queue(
      number, [] {}, [slept](double seconds) { slept->push_back(seconds); });
  queue.set_delays(delays);
  for (int k = 0; k < count; ++k) queue.push([] {}, delayed);
  wait(queue);
  return *slept;
}

TEST(Queue, DoesTasksInOrderOnOneThreadOfItsOwn) {
  std::vector<int> done;
  std::set<std::thread::id> threads;
  Queue& queue = new_queue();
  for (int k = 0; k < 100; ++k) {
    queue.push([&, k] {
      done.push_back(k);
      threads.insert(std::this_thread::get_id());
    });
  }
  wait(queue);
  ASSERT_THAT(done, SizeIs(100));
  for (int k = 0; k < 100; ++k) EXPECT_EQ(done[k], k);
  EXPECT_THAT(threads, ElementsAre(Ne(std::this_thread::get_id())));
}

TEST(Queue, TakesTasksFromAnyThread) {
  int count = 0;
  Queue& queue = new_queue();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) queue.push([&] { ++count; });
    });
  }
  for (auto& thread : threads) thread.join();
  wait(queue);
  EXPECT_EQ(count, 400);
}

TEST(Queue, PushDoesNotWait) {
  std::promise<void> go;
  bool done = false;
  Queue& queue = new_queue();
  queue.push([&, ready = go.get_future().share()] {
    ready.wait();
    done = true;
  });
  go.set_value();
  wait(queue);
  EXPECT_TRUE(done);
}

TEST(Queue, IsIdleBeforeTheFirstTask) { EXPECT_TRUE(new_queue().idle()); }

TEST(Queue, IsNotIdleWhileATaskRuns) {
  std::promise<void> started, go;
  Queue& queue = new_queue();
  queue.push([&, ready = go.get_future().share()] {
    started.set_value();
    ready.wait();
  });
  EXPECT_FALSE(queue.idle());
  started.get_future().wait();
  EXPECT_FALSE(queue.idle());
  go.set_value();
  wait(queue);
}

TEST(Queue, IsNotIdleWhileATaskWaits) {
  std::promise<void> go;
  Queue& queue = new_queue();
  queue.push([ready = go.get_future().share()] { ready.wait(); });
  queue.push([] {});
  queue.push_signal([] {});
  EXPECT_FALSE(queue.idle());
  go.set_value();
  wait(queue);
}

TEST(Queue, ASignalComesInOrder) {
  std::vector<int> done;
  Queue& queue = new_queue();
  for (int k = 0; k < 10; k += 2) {
    queue.push([&, k] { done.push_back(k); });
    queue.push_signal([&, k] { done.push_back(k + 1); });
  }
  wait(queue);
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(Queue, IsIdleForWhoeverHasGotASignalButNotWithWorkBehindIt) {
  Queue& queue = new_queue();
  std::promise<void> go, told;
  queue.push_signal([&] { told.set_value(); });
  queue.push([ready = go.get_future().share()] { ready.wait(); });
  told.get_future().wait();
  EXPECT_FALSE(queue.idle());
  go.set_value();
  wait(queue);
}

TEST(Queue, DelaysTasksThatMayBeDelayedOnly) {
  EXPECT_THAT(delays_of(0, {1, 1, 1}, 100, /*delayed=*/false), IsEmpty());
  EXPECT_THAT(delays_of(0, {1, 1, 1}, 100, /*delayed=*/true), SizeIs(100));
}

TEST(Queue, DelaysAreBetweenZeroAndTheSecondsAsked) {
  EXPECT_THAT(delays_of(0, {1, 1, 0.5}, 1000), Each(AllOf(Ge(0), Lt(0.5))));
}

TEST(Queue, DelaysAreTheSameForTheSameSeed) {
  EXPECT_EQ(delays_of(3, {7, 0.5, 1}, 100), delays_of(3, {7, 0.5, 1}, 100));
}

TEST(Queue, DelaysAreOthersForAnotherSeed) {
  EXPECT_NE(delays_of(3, {7, 1, 1}, 4), delays_of(3, {8, 1, 1}, 4));
}

TEST(Queue, DelaysComeBeforeTheTask) {
  std::vector<int> order;
  auto& queue = *new Queue(
      0, [] {}, [&order](double) { order.push_back(-1); });
  queue.set_delays({1, 1, 1});
  for (int k = 0; k < 3; ++k) {
    queue.push([&, k] { order.push_back(k); }, /*delayed=*/true);
  }
  wait(queue);
  EXPECT_THAT(order, ElementsAre(-1, 0, -1, 1, -1, 2));
}

TEST(Queue, DelaysTakeTheirTime) {
  const Delays delays{1, 1, 2e-3};
  double seconds = 0;
  for (const double each : delays_of(5, delays, 10)) seconds += each;
  Queue& queue = new_queue(5);
  queue.set_delays(delays);
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < 10; ++k) queue.push([] {}, /*delayed=*/true);
  wait(queue);
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), seconds);
}

}  // namespace
}  // namespace gpipe::simulated
