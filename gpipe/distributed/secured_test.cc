// A world with a secret or with certificates: the bits of a world without, and
// no stranger takes part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/utils.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/links/testing/certificates.h"
#include "gpipe/distributed/links/testing/strangers.h"
#include "gpipe/distributed/testing/faulty_ranks.h"
#include "gpipe/distributed/testing/listeners.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/world.h"
#include "gpipe/processes/connections.h"
#include "gpipe/processes/processes.h"
#include "gpipe/testing/rounds.h"

namespace gpipe::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr char kSecret[] = "a secret that is long enough";
constexpr int kRanks = 3;

// Trains as "train" does, with a secret and a certificate. Connects when the
// file `after` is there.
const RankProgramEntry kTrainSecured("train secured", [] {
  torch::set_num_threads(1);
  while (!argument("after").empty() &&
         !std::filesystem::exists(argument("after"))) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  return train_as_told([] {
    WorldOptions options = world_options();
    options.secret = argument("secret");
    options.tls = {argument("certificate"), argument("key"),
                   argument("authority")};
    return options;
  });
});

const Arguments kSteps{{"steps", "20"}};

std::vector<std::string> plain_bits() {
  return bits_of(Ranks("train", kRanks, kSteps).wait());
}

// Returns the arguments of a rank that has a certificate.
Arguments with_certificate(Authority& authority, const std::string& name) {
  const internal::Identity files = authority.identity(name);
  return {{"certificate", files.certificate},
          {"key", files.key},
          {"authority", files.authority}};
}

TEST(Secured, ASecretOrCertificatesOrBothChangeNoBit) {
  const auto bits = plain_bits();
  const Arguments secret{{"secret", kSecret}};
  Authority authority;
  std::vector<Arguments> certificates, both;
  for (int rank = 0; rank < kRanks; ++rank) {
    certificates.push_back(
        join(kSteps, with_certificate(authority, std::to_string(rank))));
    both.push_back(join(certificates.back(), secret));
  }
  const auto run = [](const std::vector<Arguments>& arguments) {
    return bits_of(Ranks("train secured", arguments).wait());
  };
  EXPECT_EQ(run(std::vector<Arguments>(kRanks, join(kSteps, secret))), bits);
  EXPECT_EQ(run(certificates), bits);
  EXPECT_EQ(run(both), bits);
}

// Trains one step of 1F1B and counts the connections.
const RankProgramEntry kCountConnections("count connections", [] {
  torch::set_num_threads(1);
  WorldOptions options = world_options();
  options.secret = argument("secret");
  const auto world = World::connect(options);
  const Trainee trainee(world->size());
  auto pipeline = make_pipeline(trainee, world);
  train_step(pipeline);
  say("connections", std::to_string(count_connections()));
  train_step(pipeline);  // after which no rank leaves before all have counted
  return 0;
});

TEST(Secured, ConnectsTheRanksThatAnOpenWorldConnects) {
  constexpr int kMany = 8;
  const auto run = [](const Arguments& arguments) {
    std::vector<int> counts;
    const auto results =
        Ranks("count connections", kMany, arguments).wait(seconds(100));
    expect_all_ok(results);
    for (const RankResult& each : results) {
      counts.push_back(std::stoi(said(each)["connections"]));
    }
    return counts;
  };
  std::vector<int> open = run({});
  // In an open world, rank 0 is connected with its own store. That connection
  // has two ends.
  open[0] -= 2;
  // The store, the heartbeats of ranks at distances 1 and 2, neighbouring
  // stages, and the tree with 0-4, 0-2, 0-1, 2-3, 4-6, 4-5 and 6-7. Those
  // that begin with the second exchange tensors, too, so that they count once
  // for heartbeats and once for data.
  EXPECT_EQ(open,
            (std::vector<int>{7 + 4 + 3, 1 + 4 + 2, 1 + 4 + 3, 1 + 4 + 2,
                              1 + 4 + 4, 1 + 4 + 2, 1 + 4 + 3, 1 + 4 + 1}));
  EXPECT_EQ(run({{"secret", kSecret}}), open);
}

// Rank 4 connects to rank 1, with which it has exchanged nothing before.
const RankProgramEntry kReach("reach", [] {
  try {
    WorldOptions options = world_options();
    options.secret = kSecret;
    const auto world = World::connect(options);
    if (std::to_string(world->rank()) == argument("dies")) {
      say("connected", "yes");
      std::this_thread::sleep_for(seconds(600));
    }
    if (world->rank() == 1) world->reach({4}, 77);
    if (world->rank() == 4) world->reach({1}, 77);
    while (true) {
      world->check();
      std::this_thread::sleep_for(milliseconds(2));
    }
  } catch (...) {
    say_exception(std::current_exception());
    return kFailedAsTold;
  }
});

TEST(Secured, ARankThatDiesBeforeALinkIsMadeIsNamedByAll) {
  for (const int dies : {1, 4}) {
    SCOPED_TRACE(dies);
    Ranks running("reach", 6,
                  {{"dies", std::to_string(dies)},
                   {"timeout_ms", "600000"},
                   {"heartbeat_ms", "60000"}});
    ASSERT_TRUE(running.wait_for_line(dies, "connected: yes"));
    running.signal(dies, SIGKILL);
    const auto results = running.wait(seconds(60));
    for (int rank = 0; rank < 6; ++rank) {
      if (rank != dies) expect_peer_error(results[rank], "has died", dies);
    }
  }
}

// Returns the ports on which the processes listen.
std::vector<Listener> all_listeners(const std::vector<std::string>& pids) {
  std::vector<Listener> all;
  for (const std::string& pid : pids) {
    for (const Listener& each : listeners_of(pid)) all.push_back(each);
  }
  return all;
}

TEST(Secured, NoPortIsOpenWhenAllPairsAreConnected) {
  Ranks running("train secured", kRanks,
                {{"steps", "100"}, {"secret", kSecret}});
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(running.wait_for_line(rank, "running: yes"));
  }
  const auto pids = children();
  EXPECT_GE(pids.size(), 3u);
  const auto end = std::chrono::steady_clock::now() + seconds(20);
  while (!all_listeners(pids).empty() &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(children(), pids);  // still training
  EXPECT_TRUE(all_listeners(pids).empty());
  expect_all_ok(running.wait());
}

// Of four ranks in a row, 1 and 3 exchange nothing, nor do 0 and 3. So ranks 0
// and 1 listen while they train, on one port each.
TEST(Secured, StrangersChangeNoBitWhileRanksTrain) {
  constexpr int kRow = 4;
  // Some strangers come while ranks wait in a step, and others while ranks
  // compute.
  const Arguments steps{{"steps", std::to_string(rounds(200, 2000))},
                        {"place", "loss"},
                        {"at", "3"},
                        {"deed", "sleep"},
                        {"ms", "500"}};
  const auto bits = bits_of(Ranks("train", kRow, steps).wait());
  Ranks running("train secured", kRow, join(steps, {{"secret", kSecret}}));
  for (int rank = 0; rank < kRow; ++rank) {
    ASSERT_TRUE(running.wait_for_line(rank, "running: yes"));
  }
  const auto pids = children();
  const auto listeners = all_listeners(pids);
  EXPECT_EQ(listeners.size(), 2u);
  const auto count = static_cast<int>(rounds(8, 100));
  for (const Listener& each : listeners) {
    EXPECT_EQ(visit(each.port, count, 1, ""), 0);
  }
  EXPECT_EQ(children(), pids);  // still training
  const auto results = running.wait(seconds(100));
  EXPECT_EQ(bits_of(results), bits);
  EXPECT_THAT(results[0].err, HasSubstr("a connection from 127.0.0.1:"));
}

// Strangers come to every port that a rank has, while the last rank is late,
// while the ranks connect, and while they train.
TEST(Secured, StrangersNeitherGetInNorChangeABit) {
  const auto bits = plain_bits();
  const auto count = static_cast<int>(rounds(80, 10000));
  const std::string file =
      std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR")
                                             : "/tmp") +
      "/strangers-" + std::to_string(::getpid());
  const int port = free_port();
  Arguments early{{"secret", kSecret},
                  {"steps", "20"},
                  {"timeout_ms", "600000"},
                  {"MASTER_PORT", std::to_string(port)}};
  std::vector<Arguments> arguments(kRanks, early);
  arguments.back().emplace_back("after", file);
  Ranks running("train secured", arguments);
  // A member of another world with the same secret is recorded here.
  std::string recorded;
  while (recorded.empty()) {
    recorded = recorded_handshake(port, kSecret);
  }
  EXPECT_EQ(visit(port, count, 1, recorded), 0);
  std::atomic<bool> is_over{false};
  std::atomic<int> let_in{0}, visits{0};
  std::thread strangers([&] {
    for (unsigned seed = 0; !is_over; ++seed) {
      for (const std::string& pid : children()) {
        for (const Listener& each : listeners_of(pid)) {
          let_in += visit(each.port, kKindsOfStrangers, seed, recorded);
          visits += kKindsOfStrangers;
        }
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  std::ofstream(file) << "come";
  const auto results = running.wait(seconds(200));
  is_over = true;
  strangers.join();
  std::filesystem::remove(file);
  EXPECT_EQ(let_in, 0);
  EXPECT_EQ(bits_of(results), bits);
  EXPECT_THAT(results[0].err, HasSubstr("a connection from 127.0.0.1:"));
  // For docs/results/processes.md.
  std::cout << count << " strangers before, " << visits
            << " while ranks connect\n"
            << results[0].err;
}

TEST(Secured, AnotherSecretIsNamedAtOnceOnBothSides) {
  // Rank 1 would wait for ten minutes.
  const std::vector<Arguments> arguments = {
      {{"secret", kSecret}, {"timeout_ms", "1500"}},
      {{"secret", "another secret, also long enough"},
       {"timeout_ms", "600000"}}};
  const auto results = Ranks("train secured", arguments).wait(seconds(30));
  auto words = expect_peer_error(results[1], "disagrees", 0);
  EXPECT_THAT(words["what"], HasSubstr("the other end has another secret"));
  EXPECT_THAT(words["what"], HasSubstr("GPIPE_SECRET_FILE"));
  words = expect_peer_error(results[0], "has not answered in time", 1);
  EXPECT_THAT(words["what"], HasSubstr("missing: 1; 1 connection was refused, "
                                       "the last one because: "));
  EXPECT_THAT(results[0].err, HasSubstr("the other end has another secret"));
}

TEST(Secured, ARankWithoutASecretIsRefused) {
  std::vector<Arguments> arguments(2, {{"timeout_ms", "1500"}});
  arguments[0].emplace_back("secret", kSecret);
  const auto results = Ranks("train secured", arguments).wait(seconds(30));
  expect_peer_error(results[1], "has not answered in time", 0);
  expect_peer_error(results[0], "has not answered in time", 1);
  EXPECT_THAT(results[0].err, HasSubstr("does not speak TLS"));
}

TEST(Secured, ASecretThatCanBeGuessedIsRefused) {
  const auto results =
      Ranks("train secured", 2, {{"secret", "guess"}}).wait(seconds(30));
  for (const RankResult& each : results) {
    auto words = said(each);
    EXPECT_EQ(words["type"], "ValueError");
    EXPECT_THAT(words["text"], HasSubstr("has 5 bytes"));
  }
}

}  // namespace
}  // namespace gpipe::testing
