// Tests pipelines when their process forks or exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::layer;
using torch::Tensor;
namespace nn = torch::nn;

GPipeOptions options() {
  return GPipeOptions({1, 1})
      .chunks(2)
      .devices({torch::kCPU, torch::kCPU})
      .checkpoint(Checkpoint::kAlways);
}

// Returns a pipeline after a training step.
GPipe trained() {
  GPipe pipeline(nn::Sequential(nn::Linear(2, 2), nn::Linear(2, 2)), options());
  pipeline->forward(torch::ones({4, 2})).sum().backward();
  return pipeline;
}

// --- Forks -------------------------------------------------------------------

// Runs `run` in a fork of this process. Returns what it wrote and how it ended:
// "..., exit 0".
std::string in_fork(const std::function<void(std::ostream&)>& run) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // ends the fork if it hangs
    std::ostringstream text;
    run(text);
    const std::string words = text.str();
    const bool all = ::write(ends[1], words.data(), words.size()) ==
                     static_cast<ssize_t>(words.size());
    ::_exit(all ? 0 : 1);
  }
  ::close(ends[1]);
  std::string words;
  char byte;
  while (::read(ends[0], &byte, 1) == 1) words += byte;
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return words + (WIFEXITED(status)
                      ? ", exit " + std::to_string(WEXITSTATUS(status))
                      : ", signal " + std::to_string(WTERMSIG(status)));
}

constexpr char kRefused[] =
    "c10::Error: a pipeline cannot be used in a fork of the process that made "
    "it: its workers are threads, which fork() does not copy";

class Fork : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not know forks";
#endif
  }
};

TEST_F(Fork, APipelineOfTheParentIsRefusedAndEndsWithoutWaiting) {
  GPipe pipeline = trained();
  const Tensor x = torch::ones({4, 2});
  const Tensor expected = pipeline->forward(x);
  EXPECT_THAT(in_fork([&](std::ostream& out) {
                out << error_of([&] { pipeline->forward(x); });
              }),
              HasSubstr(kRefused));
  EXPECT_THAT(in_fork([&](std::ostream& out) {
                out << error_of([&] {
                  pipeline->train_step(
                      x, x,
                      [](Tensor output, Tensor target) {
                        return (output - target).mean();
                      },
                      one_forward_one_backward(2, 2));
                });
              }),
              HasSubstr(kRefused));
  Tensor output = pipeline->forward(x);  // its graph keeps the workers, too
  EXPECT_EQ(in_fork([&](std::ostream& out) {
              pipeline = nullptr;
              output = Tensor();
              out << "gone";
            }),
            "gone, exit 0");
  // The parent process is not affected.
  output.sum().backward();
  EXPECT_TRUE(torch::equal(pipeline->forward(x), expected));
}

TEST_F(Fork, WhileAForwardRunsItIsRefusedToo) {
  std::promise<void> entered, done;
  std::shared_future<void> may_end = done.get_future().share();
  std::atomic<bool> first{true};
  GPipe pipeline(nn::Sequential(layer([](Tensor x) { return x + 1; }),
                                layer([&](Tensor x) {
                                  if (first.exchange(false)) {
                                    entered.set_value();
                                    may_end.wait();
                                  }
                                  return x * 2;
                                })),
                 options());
  const Tensor x = torch::ones({4});
  Tensor output;
  std::thread caller([&] { output = pipeline->forward(x); });
  entered.get_future().wait();
  EXPECT_THAT(in_fork([&](std::ostream& out) {
                out << error_of([&] { pipeline->forward(x); });
              }),
              HasSubstr(kRefused));
  done.set_value();
  caller.join();
  EXPECT_TRUE(torch::equal(output, (x + 1) * 2));
}

// --- Exit --------------------------------------------------------------------

// Each test runs in its own process, several times, since failures depend on
// timing.
class ExitDeathTest : public ::testing::TestWithParam<int> {
 protected:
  ExitDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(ExitDeathTest, WithAStaticPipelineIsInOrder) {
  EXPECT_EXIT(
      {
        static const GPipe pipeline = trained();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitDeathTest, WithAStaticGraphIsInOrder) {
  EXPECT_EXIT(
      {
        static const Tensor output = trained()->forward(torch::ones({4, 2}));
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitDeathTest, WithAPipelineThatNobodyDestroysIsInOrder) {
  EXPECT_EXIT(
      {
        static GPipe* const pipeline = new GPipe(trained());
        (*pipeline)->forward(torch::ones({4, 2}));
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(, ExitDeathTest, ::testing::Range(0, 5));

}  // namespace
}  // namespace gpipe
