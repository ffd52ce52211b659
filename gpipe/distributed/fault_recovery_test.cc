// Training goes on after a failure. Worlds, forks and broken pipes leave
// nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/faulty_ranks.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/testing/two_worlds.h"
#include "gpipe/distributed/world.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/process.h"

namespace gpipe::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using torch::Tensor;

// Trains on after an error, with what is in memory. With the argument "keep",
// the World that has failed still exists when the next one is made.
const RankProgramEntry kRecover("recover", [] {
  torch::set_num_threads(1);
  Trainee trainee(world_options().size);
  std::shared_ptr<World> kept;
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      const auto world = World::connect(world_options());
      if (argument("keep") == "yes") kept = world;
      train(world, trainee);
      say("attempts", std::to_string(attempt + 1));
      return 0;
    } catch (...) {
      say_exception(std::current_exception());
    }
  }
  return kFailedAsTold;
});

// Makes one world after the other, on the same port.
const RankProgramEntry kAgain("again", [] {
  torch::set_num_threads(1);
  Trainee trainee(world_options().size);
  int before = 0;
  int64_t longest = 0;
  for (int k = 0; k < 20; ++k) {
    auto world = World::connect(world_options());
    DistributedPipeline pipeline = make_pipeline(trainee, world);
    train_step(pipeline);
    pipeline = nullptr;
    const int64_t begin = now_ms();
    world.reset();
    longest = std::max(longest, now_ms() - begin);
    // The first use of LibTorch starts threads that stay.
    if (k == 0) before = count_threads();
  }
  // A thread that has just ended may still be listed.
  comes_true([&] { return count_threads() <= before; });
  say("threads", std::to_string(count_threads() - before));
  say("longest", std::to_string(longest));
  return 0;
});

// Rank 0 forks between two steps. The child tries all calls and destroys its
// pipeline and world.
const RankProgramEntry kFork("fork", [] {
  torch::set_num_threads(1);
  auto world = World::connect(world_options());
  Trainee trainee(world->size());
  DistributedPipeline pipeline = make_pipeline(trainee, world);
  train_step(pipeline);
  if (world->rank() == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);  // ends the child if it hangs
      const Tensor rows = torch::ones({kRows, kWidth}, torch::kDouble);
      const std::vector<std::function<void()>> calls{
          [&] { train_step(pipeline); },
          [&] { pipeline->any(true); },
          [&] { pipeline->forward(rows); },
          [&] { pipeline->evaluate(rows, rows, mean_square); },
          [&] { pipeline->clip_grad_norm_(1.0); },
          [&] { make_pipeline(trainee, world); },
          [&] { all_gather(*world, "of the fork"); }};
      int done = 0;
      for (const auto& call : calls) {
        try {
          call();
        } catch (const c10::Error& error) {
          const std::string text = error.what();
          if (text.find("in a fork of the process") != std::string::npos) {
            ++done;
            continue;
          }
        }
        ::_exit(1 + done);  // this call is not refused
      }
      pipeline = nullptr;
      world.reset();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    say("fork", std::to_string(status));
  }
  for (++step_now; step_now < 4; ++step_now) train_step(pipeline);
  say("steps", std::to_string(step_now));
  return 0;
});

// Rank 1 fails in a step, and all ranks go on with what they have in memory.
// `where`: the two sets of arguments for the rounds that run at the same time.
void expect_recovery(const std::array<Arguments, 2>& where) {
  const Arguments steps{{"steps", "10"}};
  const auto bits = bits_of(Ranks("recover", 3, join(steps, where[0])).wait());
  for (const std::string at : {"0", "6"}) {
    std::vector<Round> rounds;
    // With 700, rank 0 still serves the old world when the others reconnect.
    for (const std::string hold : {"0", "700"}) {
      std::vector<Arguments> arguments(3, join(steps, where[rounds.size()]));
      arguments[0].emplace_back("hold_ms", hold);
      arguments[1] = join(arguments[1],
                          {{"place", "backward"}, {"deed", "std"}, {"at", at}});
      rounds.push_back({"step " + at + ", rank 0 late by " + hold + " ms",
                        "recover", arguments});
    }
    const auto all_results = run_rounds(rounds, seconds(60));
    for (std::size_t k = 0; k < rounds.size(); ++k) {
      SCOPED_TRACE(rounds[k].name);
      EXPECT_EQ(bits_of(all_results[k]), bits);
      for (const RankResult& each : all_results[k]) {
        EXPECT_EQ(said(each)["attempts"], "2");
      }
    }
  }
}

TEST(Fault, TrainingGoesOnInANewWorldAsIfNothingHadBeen) {
  expect_recovery({});
}

TEST(Fault, AndSoItDoesWhileTheFailedWorldStillExists) {
  const Arguments keep{{"keep", "yes"}};
  expect_recovery({keep, keep});
}

TEST(Fault, AndSoItDoesWhereALauncherServesTheStore) {
  // Rounds that follow each other use the same store. Rounds at the same time
  // must not.
  std::vector<c10::intrusive_ptr<c10d::TCPStore>> stores;
  std::array<Arguments, 2> where;
  for (Arguments& each : where) {
    stores.push_back(serve_store());
    each = {{"MASTER_PORT", std::to_string(stores.back()->getPort())}};
  }
  ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  expect_recovery(where);
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
}

// Returns whether a write to a pipe without a reader is an error.
bool is_broken_pipe_an_error() {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const bool is_error = ::write(ends[1], "x", 1) == -1 && errno == EPIPE;
  ::close(ends[1]);
  return is_error;
}

const RankProgramEntry kPipe("pipe", [] {
  ::signal(SIGPIPE, SIG_DFL);
  const auto world = World::connect(world_options());
  return is_broken_pipe_an_error() ? 0 : 1;
});

volatile sig_atomic_t pipes_broken = 0;

const RankProgramEntry kHandledPipe("handled pipe", [] {
  ::signal(SIGPIPE, [](int) { pipes_broken = pipes_broken + 1; });
  const auto world = World::connect(world_options());
  return is_broken_pipe_an_error() && pipes_broken == 1 ? 0 : 1;
});

// A write to a rank that has just died is one to a broken pipe.
TEST(Fault, ABrokenPipeDoesNotEndTheProcess) {
  for (const std::string program : {"pipe", "handled pipe"}) {
    expect_all_ok(Ranks(program, 2).wait(seconds(30)));
  }
}

TEST(Fault, AForkIsRefusedAndDisturbsNobody) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not know forks";
#endif
  const auto results = Ranks("fork", 2).wait(seconds(60));
  expect_all_ok(results);
  for (const RankResult& each : results) EXPECT_EQ(said(each)["steps"], "4");
  EXPECT_EQ(said(results[0])["fork"], "0");
}

// Rank 1 connects a second time, as another process would.
const RankProgramEntry kTwice("twice", [] {
  const auto world = World::connect(world_options());
  if (world->rank() == 1) {
    auto options = world_options();
    options.timeout = milliseconds(3000);
    try {
      World::connect(options);
    } catch (const PeerError& error) {
      say("rank", std::to_string(error.failure().rank));
      say("fault", to_string(error.failure().fault));
      say("what", error.failure().what);
    }
  }
  all_gather(*world, "done");
  return 0;
});

TEST(Fault, ASecondProcessWithTheRankOfARunningWorldIsTold) {
  const auto results = expect_ok("twice", 2);
  auto words = said(results[1]);
  EXPECT_EQ(words["rank"], "1");
  EXPECT_EQ(words["fault"], "disagrees");
  EXPECT_THAT(words["what"],
              ::testing::StartsWith("there are two processes with rank 1 at "));
}

TEST(Fault, WorldsMayFollowEachOtherAndLeaveNothing) {
  const auto results = expect_ok("again", 3);
  for (const RankResult& each : results) {
    auto words = said(each);
    EXPECT_EQ(words["threads"], "0");
    EXPECT_LE(std::stoi(words["longest"]), 900);  // no rank waited for another
  }
}

}  // namespace
}  // namespace gpipe::testing
