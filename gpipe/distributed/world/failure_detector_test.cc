#include "gpipe/distributed/world/failure_detector.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/rendezvous.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;

constexpr milliseconds kPause{5};

// Rank 1 is stopped, continues, sends a failure and waits for the answer.
const RankProgramEntry kPauses("pauses", [] {
  const auto options = world_options();
  const Rendezvous meeting = meet(options);
  std::atomic<bool> heard{false};
  FailureDetector detector(
      meeting.control, options.rank, options.size, seconds(60),
      [&](const RankFailure& failure) {
        // The other rank may have left by then.
        if (!heard) std::cout << failure.what << std::endl;
        heard = true;
      },
      kPause);
  const auto wait = [&] {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (!heard && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (!heard) std::cout << "nothing came" << std::endl;
    return heard.load();
  };
  const int rank = options.rank;
  const RankFailure word{Fault::kFailed, rank, rank, "",
                         "word of rank " + std::to_string(rank)};
  if (rank == 1) {
    std::cout << "stands still" << std::endl;
    ::raise(SIGSTOP);
    detector.announce(word);
    wait();
  } else if (wait()) {
    detector.announce(word);
  }
  detector.leave(seconds(5));
  return 0;
});

TEST(FailureDetector, APauseOfAnyNumberOfBeatsIsNoHarm) {
  Ranks running("pauses", 2);
  ASSERT_TRUE(running.wait_for_line(1, "stands still"));
  std::this_thread::sleep_for(100 * kPause);  // the test needs this delay
  running.signal(1, SIGCONT);
  const auto results = running.wait(seconds(60));
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(results[rank].ended && results[rank].exit.ok())
        << results[rank].err;
  }
  EXPECT_EQ(results[0].out, "word of rank 1\n");
  EXPECT_EQ(results[1].out, "stands still\nword of rank 0\n");
}

}  // namespace
}  // namespace gpipe::internal
