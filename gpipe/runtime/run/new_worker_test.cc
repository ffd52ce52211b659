#include "gpipe/runtime/run/new_worker.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace gpipe::internal {
namespace {

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

TEST(NewWorker, OfNoNumberHasThoseOfLibTorch) {
  at::set_num_threads(3);
  int threads = 0;
  new_worker([] {}, 0)->post([&] { threads = at::get_num_threads(); });
  EXPECT_EQ(threads, 3);
}

}  // namespace
}  // namespace gpipe::internal
