// A thread that cannot start is an error, and what could start ends again.
#include <gtest/gtest.h>
#include <pthread.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <csignal>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <system_error>
#include <utility>

#include "gpipe/base/processes.h"
#include "gpipe/distributed/testing/faulty_ranks.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/thread_limit.h"

namespace gpipe::testing {
namespace {

// Calls `body` with one more thread each time, until it can start all. Returns
// how often it threw.
int refusals(const std::function<void()>& body) {
  for (int more = 0;; ++more) {
    const ThreadLimit limit(more);
    try {
      body();
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code(), std::errc::resource_unavailable_try_again);
      continue;
    }
    return more;
  }
}

TEST(FewThreads, APipelineThrows) {
  torch::set_num_threads(1);
  torch::nn::Sequential model;
  for (int k = 0; k < 3; ++k) model->push_back(torch::nn::Linear(2, 2));
  const int thrown = refusals([&] {
    GPipe pipeline(model, GPipeOptions({1, 1, 1}).chunks(2));
    pipeline->forward(torch::ones({4, 2})).sum().backward();
  });
  EXPECT_EQ(thrown, ThreadLimit::kWorks ? 3 : 0);
}

TEST(FewThreads, ALauncherThrowsWithItsSignalsAsBefore) {
  EXPECT_EQ(refusals([] {
              Processes processes({Command{.program = "/bin/true"}}, nullptr);
            }),
            ThreadLimit::kWorks ? 1 : 0);
  sigset_t blocked;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &blocked), 0);
  EXPECT_FALSE(sigismember(&blocked, SIGTERM));
}

// Rank 0 can start "threads" more. Prints the error, or "trained".
const RankProgramEntry kFewThreads("few threads", [] {
  torch::set_num_threads(1);
  const std::string threads = argument("threads");
  const ThreadLimit limit(threads.empty() ? 1000 : std::stoi(threads));
  try {
    const auto world = World::connect(world_options());
    Trainee trainee(world->size());
    DistributedPipeline pipeline = make_pipeline(trainee, world);
    train_step(pipeline);
    std::cout << "trained" << std::endl;
  } catch (const std::exception& error) {
    std::cout << error.what() << std::endl;
  }
  return 0;
});

TEST(FewThreads, ARankThrowsAndTheOthersLearnOfIt) {
  if (!ThreadLimit::kWorks) GTEST_SKIP() << "threads are not limited";
  for (int more = 0;; ++more) {
    SCOPED_TRACE(more);
    ASSERT_LT(more, 50);
    const std::pair<std::string, std::string> soon = {"timeout_ms", "5000"};
    Ranks ranks("few threads",
                {{{"threads", std::to_string(more)}, soon}, {soon}});
    const auto results = ranks.wait();
    expect_all_ok(results);
    if (HasFailure()) return;
    if (results[0].out == "trained\n") {
      EXPECT_EQ(results[1].out, "trained\n");
      return;
    }
  }
}

}  // namespace
}  // namespace gpipe::testing
