// The Gloo headers that this was compiled with fit the Gloo inside LibTorch:
// everything that depends on the layout of its classes gives the right bits.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"

namespace gpipe::internal {
namespace {

using c10d::ProcessGroupGloo;
using std::chrono::milliseconds;
using testing::check;
using testing::RankProgramEntry;
using testing::RankResult;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;

constexpr milliseconds kTimeout{23456};
constexpr int kTag = 5;

// Two ranks; the other one is 1 - rank.
struct Pair {
  Pair() : options(world_options()) {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(options.port);
    store_options.isServer = options.rank == 0;
    store_options.waitWorkers = false;
    store_options.timeout = options.timeout;
    store = c10::make_intrusive<c10d::TCPStore>(options.address, store_options);
    const auto device = ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    auto gloo = ProcessGroupGloo::Options::create(kTimeout);
    gloo->devices = {device, device};
    gloo->threads = 3;
    group = c10::make_intrusive<ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("group", store), options.rank, 2,
        gloo);
  }

  c10::intrusive_ptr<c10d::Work> send(Tensor tensor) {
    std::vector<Tensor> list{std::move(tensor)};
    return group->send(list, 1 - options.rank, kTag);
  }
  c10::intrusive_ptr<c10d::Work> receive(Tensor tensor) {
    std::vector<Tensor> list{std::move(tensor)};
    return group->recv(list, 1 - options.rank, kTag);
  }
  void barrier() { group->barrier()->wait(); }
  // Returns when both ranks are here and rank 1 needs the store, which rank 0
  // has, no more.
  void meet_at_end() {
    const auto wait_for = [this](int64_t count) {
      while (store->add("end", 0) < count) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    };
    store->add("end", 1);
    wait_for(2);
    if (options.rank == 1) {
      store->add("end", 1);
    } else {
      wait_for(3);
    }
  }

  WorldOptions options;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<ProcessGroupGloo> group;
};

// Returns numbers that differ by rank.
Tensor numbers(int64_t size, torch::Dtype type, int rank) {
  return torch::arange(size).mul(3 + rank).add(rank).remainder(113).to(type);
}

// Up to more than a socket buffers.
constexpr int64_t kSizes[] = {1, 2, 1000, 65537, 3000000};

const RankProgramEntry kTalk("talk", [] {
  Pair pair;
  const int rank = pair.options.rank, other = 1 - rank;
  check(pair.group->getRank() == rank && pair.group->getSize() == 2, "size");
  for (const auto type :
       {torch::kByte, torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    for (const int64_t size : kSizes) {
      const std::string where =
          c10::str(" of ", size, " of type ", torch::elementSize(type));
      const Tensor mine = numbers(size, type, rank);
      const Tensor theirs = numbers(size, type, other);

      // Bytes, which gpipe sends, too.
      const Tensor got = torch::full({size}, 7, type);
      const auto receive = pair.receive(got.view(torch::kByte));
      const auto send = pair.send(mine.view(torch::kByte));
      check(send->wait() && receive->wait(), "wait" + where);
      check(got.equal(theirs), "receive" + where);

      Tensor from_first = rank == 0 ? mine.clone() : got;
      std::vector<Tensor> list{from_first};
      c10d::BroadcastOptions broadcast;
      broadcast.rootRank = 0;
      pair.group->broadcast(list, broadcast)->wait();
      check(from_first.equal(rank == 0 ? mine : theirs), "broadcast" + where);

      if (type == torch::kByte) continue;  // the sums would overflow
      Tensor sum = mine.clone();
      list = {sum};
      pair.group->allreduce(list)->wait();
      check(sum.equal(mine + theirs), "all-reduce" + where);
    }
  }
  // The barrier returns only after the other rank has added to its key. set()
  // would not do: it does not wait until the store has the value.
  pair.store->add("here" + std::to_string(rank), 1);
  pair.barrier();
  check(pair.store->check({"here" + std::to_string(other)}), "barrier");
  pair.meet_at_end();
  return 0;
});

const RankProgramEntry kFields("fields", [] {
  Pair pair;
  check(pair.group->getOptions()->timeout == kTimeout, "timeout");
  check(pair.group->getOptions()->threads == 3, "threads");
  check(pair.group->getOptions()->devices.size() == 2, "devices");
  check(pair.group->getOptions()->backend == "gloo", "backend");
  // The base class is compiled into LibTorch.
  check(pair.group->getBackendOptions()->timeout == kTimeout, "of the base");
  pair.group->setTimeout(milliseconds(11111));
  check(pair.group->getOptions()->timeout == milliseconds(11111), "set");
  pair.meet_at_end();
  return 0;
});

// Returns whether a work completes although it is aborted: `before` is aborted
// before the wait, `during` while wait() runs if that begins within 50 ms. The
// result is the same if it begins later.
bool done_in_spite_of_abort(c10d::Work& before, c10d::Work& during) {
  before.abort();
  if (before.wait(kTimeout)) return true;
  std::thread aborting([&during] {
    std::this_thread::sleep_for(milliseconds(50));
    during.abort();
  });
  const bool done = during.wait(kTimeout);
  aborting.join();
  return done;
}

const RankProgramEntry kAbort("abort", [] {
  Pair pair;
  pair.barrier();
  if (pair.options.rank == 0) {
    const auto receive = [&] {
      return pair.receive(torch::zeros({8}, torch::kByte));
    };
    const auto receives = std::make_pair(receive(), receive());
    check(!done_in_spite_of_abort(*receives.first, *receives.second),
          "an aborted receive was done");
    // More than the sockets buffer, and no receive is posted.
    const auto send = [&] {
      return pair.send(torch::zeros({32 << 20}, torch::kByte));
    };
    const auto sends = std::make_pair(send(), send());
    check(!done_in_spite_of_abort(*sends.first, *sends.second),
          "an aborted send was done");
  }
  // Printed before either rank ends, because its end may break the other's
  // connection.
  std::cout << "ok" << std::endl;
  pair.meet_at_end();
  return 0;
});

const RankProgramEntry kDeath("death", [] {
  Pair pair;
  pair.barrier();
  const Tensor got = torch::zeros({8}, torch::kByte);
  const auto receive = pair.receive(got);
  std::cout << "waiting" << std::endl;
  const auto begin = std::chrono::steady_clock::now();
  try {
    receive->wait();
  } catch (const std::exception& error) {
    check(std::chrono::steady_clock::now() - begin < kTimeout, "a timeout");
    std::cout << "failed" << std::endl;
    return 0;
  }
  return 1;
});

void expect_ok(const RankResult& result) {
  EXPECT_TRUE(result.ended && result.exit.ok())
      << to_string(result.exit) << "\n"
      << result.out << result.err;
}

TEST(Gloo, SendsReducesAndBroadcastsToTheBit) {
  for (const RankResult& each : Ranks("talk", 2).wait()) expect_ok(each);
}

TEST(Gloo, TakesTheFieldsOfItsOptions) {
  for (const RankResult& each : Ranks("fields", 2).wait()) expect_ok(each);
}

TEST(Gloo, AbortsSendsAndReceivesThatWait) {
  for (const RankResult& each : Ranks("abort", 2).wait()) {
    expect_ok(each);
    EXPECT_EQ(each.out, "ok\n");
  }
}

TEST(Gloo, EndsAReceiveWhenThePeersProcessIsGone) {
  // Rank 0 has the store.
  Ranks ranks("death", 2);
  ASSERT_TRUE(ranks.wait_for_line(0, "waiting"));
  ASSERT_TRUE(ranks.wait_for_line(1, "waiting"));
  ranks.signal(1, SIGKILL);
  const auto results = ranks.wait();
  expect_ok(results[0]);
  EXPECT_EQ(results[0].out, "waiting\nfailed\n");
  EXPECT_EQ(results[1].exit.signal, SIGKILL);
}

}  // namespace
}  // namespace gpipe::internal
