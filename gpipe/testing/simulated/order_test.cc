#include "gpipe/testing/simulated/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace gpipe::simulated {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Clock, KnowsNothingOfAStreamThatItHasNotHeardOf) {
  EXPECT_EQ(Clock().at(7), 0u);
}

TEST(Clock, MergesTheLaterTimeOfEachStream) {
  Clock a, b;
  a.set(0, 5);
  a.set(1, 1);
  b.set(0, 2);
  b.set(1, 3);
  b.set(2, 4);
  a.merge(b);
  EXPECT_EQ(a.at(0), 5u);
  EXPECT_EQ(a.at(1), 3u);
  EXPECT_EQ(a.at(2), 4u);
  b.merge(Clock());
  EXPECT_EQ(b.at(2), 4u);
}

// A fixture with one block of 100 bytes and streams 0, 1, ...
class HappensBeforeTest : public ::testing::Test {
 protected:
  static constexpr std::uintptr_t kBegin = 1000, kBytes = 100;

  HappensBeforeTest() { order_.add_block(kBegin, kBegin + kBytes); }

  void write(std::size_t stream, std::size_t from = 0,
             std::size_t to = kBytes) {
    order_.operate(stream, "write", std::nullopt,
                   {{kBegin + from, kBegin + to, /*write=*/true}});
  }
  void read(std::size_t stream, std::size_t from = 0, std::size_t to = kBytes) {
    order_.operate(stream, "read", std::nullopt,
                   {{kBegin + from, kBegin + to, /*write=*/false}});
  }
  // Orders later work of `stream` after all earlier work of `other`.
  void after(std::size_t stream, std::size_t other) {
    order_.wait(stream, order_.record(other));
  }

  HappensBefore order_;
};

TEST_F(HappensBeforeTest, ReportsTwoWrites) {
  write(0);
  write(1);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, ReportsAReadAfterAWrite) {
  write(0);
  read(1);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, ReportsAWriteAfterARead) {
  read(0);
  write(1);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, ReadsNeedNoOrder) {
  read(0);
  read(1);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, AStreamIsInOrderWithItself) {
  write(0);
  read(0);
  write(0);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, AnEventOrders) {
  write(0);
  after(1, 0);
  write(1);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, AnEventThatWasRecordedBeforeTheAccessDoesNotOrderIt) {
  read(0);
  const Clock event = order_.record(0);
  write(0);
  order_.wait(1, event);
  read(1);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, AWaitThatComesAfterTheAccessDoesNotOrderIt) {
  write(0);
  const Clock event = order_.record(0);
  write(1);
  order_.wait(1, event);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, AnEventOrdersOneWay) {
  after(1, 0);
  write(1);
  write(0);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, OrderGoesThroughAThirdStream) {
  write(0);
  after(1, 0);
  after(2, 1);
  write(2);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, AHostThatHasWaitedOrdersEveryStream) {
  write(0);
  order_.host_waited(order_.record(0));
  read(1);
  read(2);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, AHostThatHasWaitedForTooLittleDoesNotOrder) {
  read(0);
  const Clock event = order_.record(0);
  write(0);
  order_.host_waited(event);
  read(1);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, WhatTheHostHasWaitedForGoesOnWithAnEvent) {
  write(0);
  order_.host_waited(order_.record(0));
  // Stream 1 has no work of its own.
  const Clock event = order_.record(1);
  EXPECT_EQ(event.at(0), 1u);
}

TEST_F(HappensBeforeTest, DisjointBytesNeedNoOrder) {
  write(0, 40, 60);
  write(1, 60, 100);
  write(2, 0, 40);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, OneSharedByteNeedsOrder) {
  write(0, 0, 41);
  write(1, 40, 100);
  EXPECT_THAT(order_.take_races(),
              ElementsAre(HasSubstr("bytes 40 to 41 of a block of 100")));
}

TEST_F(HappensBeforeTest, BlocksAreApart) {
  order_.add_block(2000, 2010);
  write(0);
  order_.operate(1, "write", std::nullopt, {{2000, 2010, true}});
  EXPECT_THAT(order_.take_races(), IsEmpty());
  order_.operate(0, "write", std::nullopt, {{2005, 2010, true}});
  EXPECT_THAT(order_.take_races(),
              ElementsAre(HasSubstr("bytes 5 to 10 of a block of 10")));
}

TEST_F(HappensBeforeTest, TellsOperationsStreamsMicroBatchesAndBytes) {
  order_.name_stream(1, "hpu:0 stream 4");
  order_.operate(1, "aten::mul", 3, {{kBegin + 8, kBegin + 24, true}});
  order_.operate(2, "aten::add", 0, {{kBegin + 16, kBegin + 32, false}});
  EXPECT_THAT(order_.take_races(),
              ElementsAre("no wait orders aten::mul on hpu:0 stream 4 "
                          "(micro-batch 3), writing, and aten::add on stream 2 "
                          "(micro-batch 0), reading: bytes 16 to 24 of a block "
                          "of 100"));
}

TEST_F(HappensBeforeTest, TellsARaceOnce) {
  write(0);
  read(1);
  read(1);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, AWriteStandsForWhatItIsOrderedAfter) {
  write(0);
  after(1, 0);
  write(1);
  after(2, 0);
  write(2);
  EXPECT_THAT(order_.take_races(), ElementsAre(HasSubstr("write on stream 1")));
}

TEST_F(HappensBeforeTest, AReadDoesNotHideAnEarlierWrite) {
  write(0);
  read(0);
  read(1);
  EXPECT_THAT(order_.take_races(), ElementsAre(HasSubstr("write on stream 0")));
}

TEST_F(HappensBeforeTest, ANarrowWriteDoesNotHideAnEarlierWideOne) {
  write(0);
  write(0, 50, 100);
  read(1, 0, 10);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
  write(2);
  write(2, 0, 50);
  order_.take_races();
  read(3, 90, 100);
  EXPECT_THAT(order_.take_races(), SizeIs(1));
}

TEST_F(HappensBeforeTest, AReadDoesNotHideThatOfAnotherStream) {
  read(0);
  read(1);
  after(2, 1);
  write(2);
  EXPECT_THAT(order_.take_races(), ElementsAre(HasSubstr("read on stream 0")));
}

TEST_F(HappensBeforeTest, ANewBlockKnowsNothingOfTheOldOne) {
  write(0);
  order_.remove_block(kBegin);
  write(1);
  order_.add_block(kBegin, kBegin + kBytes);
  write(2);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, ReleaseReportsAnAccessOfAnUnrecordedStream) {
  order_.operate(1, "aten::mul", 2, {{kBegin + 8, kBegin + 16, false}});
  order_.release_block(kBegin, 0, {2});
  EXPECT_THAT(order_.take_races(),
              ElementsAre("no wait orders aten::mul on stream 1 (micro-batch "
                          "2), reading, and the next use of the freed memory "
                          "on stream 0, writing: bytes "
                          "8 to 16 of a block of 100"));
}

TEST_F(HappensBeforeTest, ReleaseAllowsAccessesOfTheOwner) {
  write(0);
  order_.release_block(kBegin, 0, {});
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, ReleaseAllowsAccessesOfRecordedStreams) {
  read(1, 0, 50);
  write(2, 50, 100);
  order_.release_block(kBegin, 0, {1, 2});
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, ReleaseAllowsAccessesThatTheOwnerHasWaitedFor) {
  read(1);
  after(0, 1);
  order_.release_block(kBegin, 0, {});
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest,
       ReleaseAllowsAccessesThatARecordedStreamHasWaitedFor) {
  read(1);
  after(2, 1);
  order_.release_block(kBegin, 0, {2});
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, ReleaseAllowsAccessesThatTheHostHasWaitedFor) {
  read(1);
  order_.host_waited(order_.record(1));
  order_.release_block(kBegin, 0, {});
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

TEST_F(HappensBeforeTest, ReleaseReportsWhatCameAfterTheOwnersWait) {
  read(1, 0, 10);
  after(0, 1);
  read(1, 10, 20);
  order_.release_block(kBegin, 0, {});
  EXPECT_THAT(order_.take_races(), ElementsAre(HasSubstr("bytes 10 to 20")));
}

TEST_F(HappensBeforeTest, ThoseBeforeAReleaseAreInOrderWithThoseAfterIt) {
  write(1);
  order_.release_block(kBegin, 0, {1});
  write(0);
  EXPECT_THAT(order_.take_races(), IsEmpty());
}

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;
using ::testing::Ne;

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
