// A failure of one rank ends the step on all ranks also with direct transfers
// between accelerators. Runs on simulated ones, whose transfers occupy streams,
// connect late, and do not end without their other end.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/faulty_ranks.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/testing/simulated_backend.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/communicator.h"

namespace gpipe::testing {
namespace {

using std::chrono::seconds;

constexpr int kRanks = 3;
constexpr seconds kLimit(120);
// A failure must arrive before: a rank that has reached its timeout reports
// "has not answered in time".
const Arguments kLongTimeout{{"timeout_ms", "60000"}};

// As "train", but the rank may also act when a communicator connects.
const RankProgramEntry kConnecting("connecting", [] {
  set_on_connect([] { act("connect"); });
  return train_as_told();
});

// Every rank is a replica, and gradients are added up by collective operations.
const Arguments kReplicas{{"replicas", std::to_string(kRanks)}};

// Rank 1 keeps its pipeline until rank 0 has destroyed its own.
const RankProgramEntry kKeeps("keeps", [] {
  const auto world = World::connect(world_options());
  Trainee trainee(world->size());
  {
    DistributedPipeline pipeline = make_pipeline(trainee, world);
    train_step(pipeline);
    if (world->rank() == 1) {
      internal::communicator_of(*world)->store().wait({"rank 0 is out"},
                                                      seconds(30));
    }
  }
  if (world->rank() == 0) {
    internal::communicator_of(*world)->store().set("rank 0 is out",
                                                   std::vector<uint8_t>());
  }
  return world->failure() ? kFailedAsTold : 0;
});

Arguments deed(const std::string& place, const std::string& deed, int step) {
  return join(kLongTimeout,
              {{"place", place}, {"deed", deed}, {"at", std::to_string(step)}});
}

// Runs `program` on kRanks ranks with `arguments` for rank `at_fault`. Expects
// that the other ranks name it. `both`: arguments of all ranks.
void expect_named(const std::string& program, int at_fault,
                  const Arguments& arguments, const std::string& fault,
                  const Arguments& both = {}) {
  std::vector<Arguments> all(kRanks, join(kLongTimeout, both));
  all[at_fault] = join(arguments, both);
  Ranks running(program, all);
  const auto results = running.wait_but({at_fault}, kLimit);
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(rank_text(rank));
    if (rank != at_fault) expect_peer_error(results[rank], fault, at_fault);
  }
}

// The first step connects. The third one has connected in both directions.
TEST(DirectFault, ARankThatThrowsIsNamedInTheFirstStepAndLater) {
  for (const int step : {0, 2}) {
    for (int at_fault = 0; at_fault < kRanks; ++at_fault) {
      SCOPED_TRACE(rank_text(at_fault) + ", step " + std::to_string(step));
      expect_named("train", at_fault,
                   deed(at_fault == 1 ? "backward" : "forward", "std", step),
                   "has failed");
    }
  }
}

TEST(DirectFault, ARankThatDiesIsNamedInTheFirstStepAndLater) {
  for (const int step : {0, 2}) {
    for (int at_fault = 0; at_fault < kRanks; ++at_fault) {
      SCOPED_TRACE(rank_text(at_fault) + ", step " + std::to_string(step));
      expect_named("train", at_fault,
                   deed(at_fault == 1 ? "forward" : "backward", "die", step),
                   "has died");
    }
  }
}

// The other end waits for it in its own first transfer.
TEST(DirectFault, ARankThatDiesWhenItConnectsIsNamed) {
  for (int at_fault = 0; at_fault < kRanks; ++at_fault) {
    SCOPED_TRACE(rank_text(at_fault));
    expect_named("connecting", at_fault, deed("connect", "die", 0), "has died");
  }
}

// The others wait for it in the sum of the gradients.
TEST(DirectFault, AReplicaThatFailsIsNamedByThoseThatAddUp) {
  for (const int step : {0, 2}) {
    for (int at_fault = 0; at_fault < kRanks; ++at_fault) {
      SCOPED_TRACE(rank_text(at_fault) + ", step " + std::to_string(step));
      expect_named("train", at_fault, deed("forward", "die", step), "has died",
                   kReplicas);
      expect_named("train", at_fault, deed("backward", "std", step),
                   "has failed", kReplicas);
    }
  }
  for (int at_fault = 0; at_fault < kRanks; ++at_fault) {
    SCOPED_TRACE(rank_text(at_fault) + ", connecting");
    expect_named("connecting", at_fault, deed("connect", "die", 0), "has died",
                 kReplicas);
  }
}

// The others cannot abort their transfers with it, and end nevertheless.
TEST(DirectFault, ARankThatFreezesIsNamed) {
  for (const Arguments& both : {Arguments(), kReplicas}) {
    expect_named("train", 1, deed("forward", "freeze", 2), "is frozen",
                 join(both, {{"heartbeat_ms", "2000"}}));
  }
}

TEST(DirectFault, ARankDoesNotWaitForOthersThatKeepTheirPipelines) {
  expect_all_ok(Ranks("keeps", 2, kLongTimeout).wait(kLimit));
}

}  // namespace
}  // namespace gpipe::testing
