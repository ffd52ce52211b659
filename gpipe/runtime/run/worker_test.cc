#include "gpipe/runtime/run/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>
#include <vector>

namespace gpipe::internal {
namespace {
using ::testing::ElementsAre;

TEST(Notifier, TestsTheConditionNoMoreOftenThanNeeded) {
  Notifier notifier;
  for (const int spins : {0, 2, 9}) {
    int tests = 0;
    notifier.wait([&] { return ++tests == spins + 1; }, spins);
    EXPECT_EQ(tests, spins + 1);  // `spins` times, and once before it sleeps
    tests = 0;
    notifier.wait([&] { return ++tests > 0; }, spins);
    EXPECT_EQ(tests, 1);
  }
}

TEST(Notifier, WakesAThreadThatSleepsToTestAgain) {
  Notifier notifier;
  std::atomic<int> value{0}, seen{0};
  std::thread waiting([&] {
    for (int k = 1; k <= 100; ++k) {
      notifier.wait([&] { return value >= k; }, /*spins=*/k % 2);
      seen = k;
    }
  });
  for (int k = 1; k <= 100; ++k) {
    value = k;
    notifier.notify();
  }
  waiting.join();
  EXPECT_EQ(seen, 100);
}

TEST(Notifier, GoesOnSleepingWhileTheConditionIsFalse) {
  Notifier notifier;
  std::atomic<int> tests{0};
  std::atomic<bool> done{false};
  std::thread waiting([&] {
    notifier.wait(
        [&] {
          // Read before the test is counted: a test that the other thread has
          // seen has read `false`.
          const bool is_done = done;
          ++tests;
          return is_done;
        },
        /*spins=*/0);
  });
  while (tests == 0) std::this_thread::yield();
  notifier.notify();
  while (tests < 2) std::this_thread::yield();
  done = true;
  notifier.notify();
  waiting.join();
  EXPECT_GE(tests, 3);
}

TEST(Worker, DoesTasksInOrderOnOneThreadOfItsOwn) {
  std::vector<int> done;
  std::set<std::thread::id> threads;
  {
    Worker worker([&] { threads.insert(std::this_thread::get_id()); });
    for (int k = 0; k < 3; ++k) {
      worker.post([&, k] {
        done.push_back(k);
        threads.insert(std::this_thread::get_id());
      });
    }
  }
  EXPECT_THAT(done, ElementsAre(0, 1, 2));
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
}

TEST(Worker, PreparesFirst) {
  bool prepared = false, seen = false;
  {
    Worker worker([&] { prepared = true; });
    worker.post([&] { seen = prepared; });
  }
  EXPECT_TRUE(seen);
}

TEST(Worker, DestructorWaitsForWhatWasPosted) {
  int count = 0;
  std::promise<void> go;
  auto worker = std::make_unique<Worker>([] {});
  worker->post([&, ready = go.get_future().share()] {
    ready.wait();
    ++count;
  });
  for (int k = 0; k < 9; ++k) worker->post([&] { ++count; });
  go.set_value();
  worker.reset();
  EXPECT_EQ(count, 10);
}

TEST(Worker, FlushWaitsForWhatWasPosted) {
  int count = 0;
  Worker worker([] {});
  worker.flush();
  for (int k = 0; k < 9; ++k) worker.post([&] { ++count; });
  worker.flush();
  EXPECT_EQ(count, 9);
}

TEST(Worker, ManyRunAtTheSameTime) {
  // Each task waits for the signal of the other.
  std::promise<void> first, second;
  Worker a([] {}), b([] {});
  std::promise<void> done;
  a.post([&] {
    first.set_value();
    second.get_future().wait();
    done.set_value();
  });
  b.post([&] {
    first.get_future().wait();
    second.set_value();
  });
  done.get_future().wait();
}

TEST(Worker, TakesTasksFromAnyThread) {
  int count = 0;
  {
    Worker worker([] {});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int k = 0; k < 100; ++k) worker.post([&] { ++count; });
      });
    }
    for (auto& thread : threads) thread.join();
  }
  EXPECT_EQ(count, 400);
}

TEST(Worker, MayBeIdleWhenItEnds) {
  Worker worker([] {});
}

}  // namespace
}  // namespace gpipe::internal
