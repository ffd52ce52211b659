#include "gpipe/runtime/run/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

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
