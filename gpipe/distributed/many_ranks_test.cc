// A pipeline of many ranks on one machine: which ranks connect, how long that
// takes, how many threads a rank has, and how soon all ranks know that one of
// them was killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "gpipe/base/processes.h"
#include "gpipe/distributed/testing/faulty_ranks.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/topology.h"
#include "gpipe/testing/process.h"

namespace gpipe::testing {
namespace {

// Returns the number of sockets of this process that are connected with
// another socket over IP. A connection of the process with itself counts twice.
int64_t count_connections() {
  int64_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename().string());
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    const bool has_peer =
        ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address),
                      &length) == 0;
    if (has_peer && address.ss_family != AF_UNIX) ++count;
  }
  return count;
}

// Prints the state of the rank after its first step, then trains until a rank
// fails.
const RankProgramEntry kMany("many", [] {
  torch::set_num_threads(1);
  say("started", std::to_string(now_ms()));
  const auto world = World::connect(world_options());
  const Trainee trainee(world->size());
  auto pipeline = make_pipeline(trainee, world);
  train_step(pipeline);
  say("connected", std::to_string(now_ms()));
  say("threads", std::to_string(count_threads()));
  say("connections", std::to_string(count_connections()));
  say("ready", "yes");
  try {
    while (true) train_step(pipeline);
  } catch (...) {
    say_exception(std::current_exception());
  }
  return kFailedAsTold;
});

// Returns the number of connections of `rank`: those with the store, those for
// heartbeats, and one with each rank with which it exchanges tensors or texts.
int64_t expected_connections(int rank, int ranks) {
  // Rank 0 serves the store. Its connection with itself has two ends.
  const int store = rank == 0 ? ranks + 1 : 1;
  const auto heartbeats = internal::heartbeat_peers(rank, ranks).size();
  const auto tree = internal::tree_neighbours(rank, ranks);
  std::set<int> peers(tree.begin(), tree.end());
  if (rank > 0) peers.insert(rank - 1);
  if (rank + 1 < ranks) peers.insert(rank + 1);
  return static_cast<int64_t>(store + heartbeats + peers.size());
}

int64_t largest(const std::vector<RankResult>& results,
                const std::string& word) {
  int64_t value = 0;
  for (const RankResult& each : results) {
    const auto words = said(each);
    if (words.count(word) == 0) continue;
    value = std::max<int64_t>(value, std::stoll(words.at(word)));
  }
  return value;
}

TEST(ManyRanks, ConnectOnlyToPeersAndAllNameTheKilledRank) {
  const int ranks = static_cast<int>(rounds(16, 128));
  const int killed = ranks / 2;
  Ranks running("many", ranks,
                {{"timeout_ms", "300000"}, {"heartbeat_ms", "60000"}});
  ASSERT_TRUE(running.wait_for_line("ready: yes"));
  const int64_t begin = now_ms();
  running.signal(killed, SIGKILL);
  const auto results = running.wait_but({killed}, std::chrono::seconds(60));
  for (int rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE(rank_text(rank));
    auto words = said(results[rank]);
    EXPECT_EQ(words["connections"],
              std::to_string(expected_connections(rank, ranks)));
    // Those that compute, send and receive do not grow with the ranks.
    EXPECT_LE(std::stoi(words["threads"]), 16);
    if (rank != killed) expect_peer_error(results[rank], "has died", killed);
  }
  std::cout << ranks << " ranks: the first step ended "
            << largest(results, "connected") - largest(results, "started")
            << " ms after the last rank started, with at most "
            << largest(results, "threads") << " threads and "
            << largest({results.begin() + 1, results.end()}, "connections")
            << " connections per rank (rank 0: "
            << said(results[0])["connections"]
            << "); all knew of the killed rank after "
            << largest(results, "caught") - begin << " ms" << std::endl;
}

}  // namespace
}  // namespace gpipe::testing
