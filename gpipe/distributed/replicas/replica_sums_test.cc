#include "gpipe/distributed/replicas/replica_sums.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/all_gather.h"
#include "gpipe/distributed/world/transport.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::expect_all_ok;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;

constexpr int kTag = 6, kBarrierTag = 7;

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

std::vector<int> everybody(const Communicator& world) {
  std::vector<int> members(world.size());
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// Returns a gradient that differs by rank; the sums are exact.
Tensor grad_of(const Tensor& parameter, int rank) {
  return at::full_like(parameter, 1 << rank);
}
double sum_of_grads(int ranks) { return (1 << ranks) - 1; }

void give(ReplicaSums& sums, const Tensor& parameter, int rank) {
  Tensor grad = grad_of(parameter, rank);
  check(sums.give(parameter, grad, Event()), "is a parameter");
}

// Blocks until `buckets` buckets have been added up; throws after a minute.
void wait_until_done(const ReplicaSums& sums, std::size_t buckets) {
  for (int tries = 0; tries < 6000 && sums.done() < buckets; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  check(sums.done() == buckets, "buckets done: " + std::to_string(sums.done()));
}

// A bucket for each parameter.
const RankProgramEntry kOverlap("overlap", [] {
  const auto world = Communicator::connect(world_options());
  const int rank = world->rank(), size = world->size();
  const Tensor a = at::zeros({1000}), b = at::zeros({3, 2}, at::kDouble),
               c = at::zeros({5}), d = at::zeros({2});
  Communicator& transport = *world;
  ReplicaSums sums(*world, transport, everybody(*world), kTag, SumShare::kAll,
                   1);
  for (int step = 0; step < 3; ++step) {
    sums.begin({{1, a}, {0, b}, {0, c}, {0, d}});
    check(sums.buckets() == 4, "buckets");
    Tensor other = at::ones({3});
    check(!sums.give(other, other, Event()) && other.defined(), "another");
    give(sums, a, rank);
    sums.close(1);
    // No other gradient has been given yet.
    wait_until_done(sums, 1);
    Tensor again = at::ones({1000});
    bool refused = false;
    try {
      sums.give(a, again, Event());
    } catch (const c10::Error&) {
      refused = true;
    }
    check(refused && again.defined(), "a second time");
    all_gather(*world, kBarrierTag, "", "the test");
    give(sums, c, rank);
    // One rank has no gradient of b; no rank has one of d.
    if (rank > 0) give(sums, b, rank);
    sums.close(0);
    const std::vector<Summand> result = sums.finish();
    check(result[0].like.is_same(a), "order");
    check(result[0].grad.equal(at::full_like(a, sum_of_grads(size))), "a");
    check(result[1].grad.equal(at::full_like(b, sum_of_grads(size) - 1)), "b");
    check(result[2].grad.equal(at::full_like(c, sum_of_grads(size))), "c");
    check(!result[3].grad.defined(), "d");
    check(sums.done() == 4, "done");
  }
  return 0;
});

const RankProgramEntry kStopped("stopped", [] {
  const auto world = Communicator::connect(world_options());
  const Tensor a = at::zeros({4}), b = at::zeros({4});
  Communicator& transport = *world;
  ReplicaSums sums(*world, transport, everybody(*world), kTag, SumShare::kAll,
                   1);
  sums.begin({{0, a}, {0, b}});
  give(sums, a, world->rank());
  wait_until_done(sums, 1);
  // stop() must not wait for b, which is never given.
  sums.stop();
  all_gather(*world, kBarrierTag, "", "the test");
  sums.begin({{0, a}});
  give(sums, a, world->rank());
  check(sums.finish()[0].grad.equal(at::full_like(a, sum_of_grads(2))), "sum");
  return 0;
});

// Ranks with different parameters, and ranks whose peer fails.
const RankProgramEntry kErrors("errors", [] {
  const auto world = Communicator::connect(world_options());
  const bool last = world->rank() == world->size() - 1;
  const Tensor a = at::zeros({4}), b = at::zeros({last ? 3 : 4});
  Communicator& transport = *world;
  ReplicaSums sums(*world, transport, everybody(*world), kTag);
  sums.begin({{0, a}, {0, b}});
  try {
    sums.finish();
    std::cout << "no error" << std::endl;
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
  }
  // The other ranks may learn of the failure anywhere in this block.
  try {
    all_gather(*world, kBarrierTag, "", "the test");
    sums.begin({{0, a}});
    if (last) {
      const int rank = world->rank();
      world->fail({Fault::kFailed, rank, rank, "the test", "no reason"});
      // The thread of `sums` waits for a gradient that is never given.
      sums.stop();
      return 0;
    }
    give(sums, a, world->rank());
    sums.finish();
    std::cout << "no error" << std::endl;
  } catch (const PeerError& error) {
    std::cout << to_string(error.failure().fault) << std::endl;
  }
  return 0;
});

class ReplicaSumsTest : public ::testing::TestWithParam<int> {};

TEST_P(ReplicaSumsTest, AddsABucketUpWhileOthersAreNotThere) {
  expect_all_ok(Ranks("overlap", GetParam()).wait());
}
INSTANTIATE_TEST_SUITE_P(Ranks, ReplicaSumsTest, ::testing::Values(2, 3, 4));

TEST(ReplicaSums, AStepThatIsStoppedIsForgotten) {
  expect_all_ok(Ranks("stopped", 2).wait());
}

TEST(ReplicaSums, ErrorsComeOutOfFinish) {
  const auto results = Ranks("errors", 3).wait();
  const std::string differ =
      "gradient 1 has other sizes or another dtype on rank 2 than on rank "
      "0\n";
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].ended && results[rank].exit.ok())
        << results[rank].err;
    EXPECT_EQ(results[rank].out, differ + (rank < 2 ? "has failed\n" : ""));
  }
}

}  // namespace
}  // namespace gpipe::internal
