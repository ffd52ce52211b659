// Counts the copies, launches and waits of a step on simulated accelerators of
// several ranks, and lets copies to the host fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/testing/simulated_backend.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using testing::argument;
using testing::check;
using testing::check_no_races;
using testing::expect_all_ok;
using testing::expect_ok;
using ::testing::HasSubstr;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;

// Returns the number of streams on which workers had such work.
std::size_t streams_of(const std::vector<simulated::Given>& trace,
                       const std::string& name) {
  std::set<c10::StreamId> streams;
  for (const simulated::Given& each : trace) {
    if (each.name == name && each.microbatch) streams.insert(each.stream.id());
  }
  return streams.size();
}

const RankProgramEntry kInputOfTheHost("input of the host", [](auto& world) {
  DistributedPipeline pipeline(
      nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)),
      DistributedOptions({1, 1})
          .device(testing::device(world->rank()))
          .threads(1),
      world);
  const Tensor x = torch::ones({8, 4});
  const auto gradient = [&](Tensor input) {
    if (world->rank() == 0) input.requires_grad_();
    pipeline->train_step(input, x.to(pipeline->device()), mean_square,
                         one_forward_one_backward(2, 4));
    return input.grad();
  };
  const Tensor found = gradient(x.clone());
  const Tensor expected = gradient(x.to(pipeline->device()).clone());
  if (world->rank() == 0) {
    check(found.is_cpu() && found.equal(expected.cpu()), "the same gradient");
  }
});

const RankProgramEntry kHostCopies("host copies", [](auto& world) {
  const int ranks = world->size();
  const auto balance = testing::cut(testing::linear_model()->size(), 3 * ranks);
  DistributedPipeline pipeline(testing::linear_model(),
                               DistributedOptions(balance)
                                   .stages_per_rank(3)
                                   .checkpoint(Checkpoint::kNever)
                                   .device(testing::device(world->rank()))
                                   .transfers(Transfers::kDirect)
                                   .threads(1),
                               world);
  const auto numbers = torch::dtype(torch::kDouble);
  const Tensor input = torch::randn({8, 6}, numbers).to(pipeline->device());
  const Tensor target = torch::randn({8, 3}, numbers).to(pipeline->device());
  simulated::synchronize();
  simulated::take_trace();
  simulated::set_microbatch(current_microbatch);
  pipeline->train_step(
      input, target, mean_square,
      with_offload(interleaved(ranks, 4, 3), [](int, int) { return true; }));
  const auto trace = simulated::take_trace();
  for (const char* copies : {"a copy to the host", "a copy from the host"}) {
    const std::size_t streams = streams_of(trace, copies);
    check(streams == 1, copies + (": " + std::to_string(streams)) + " streams");
  }
  check_no_races();
});

// The host waits for the run-ahead of its actions, once for all numbers of the
// loss, and once for the norms of all gradients.
const RankProgramEntry kHostWaits("waits", [](auto& world) {
  DistributedPipeline pipeline(nn::Sequential(nn::Linear(4, 4)),
                               DistributedOptions({1})
                                   .checkpoint(Checkpoint::kNever)
                                   .device(testing::device(0))
                                   .threads(1),
                               world);
  constexpr int64_t kMicrobatches = 5, kSteps = 3;
  const Tensor input = torch::randn({10, 4}, pipeline->device());
  const auto weighted = [](const Tensor& output, const Tensor& target) {
    WeightedLoss loss;
    loss.sum = (output - target).pow(2).sum();
    loss.weight = torch::full({}, 8.0, output.options());
    loss.metrics = {{"largest", output.detach().abs().max()},
                    {"positive", (output.detach() > 0).sum()}};
    return loss;
  };
  const auto waits = [&](const auto& loss) {
    const auto schedule = one_forward_one_backward(1, kMicrobatches);
    pipeline->train_step(input, input, loss, schedule);
    simulated::synchronize();
    const int64_t before = simulated::host_waits();
    for (int64_t k = 0; k < kSteps; ++k) {
      pipeline->train_step(input, input, loss, schedule);
    }
    return simulated::host_waits() - before;
  };
  const int64_t expected =
      kSteps * (2 * kMicrobatches -
                static_cast<int64_t>(internal::RunAhead::kActions) + 1);
  for (const int64_t found : {waits(mean_square), waits(weighted)}) {
    check(found == expected, std::to_string(found) + " waits instead of " +
                                 std::to_string(expected));
  }
  simulated::synchronize();
  const int64_t before = simulated::host_waits();
  pipeline->clip_grad_norm_(1.0);
  const int64_t found = simulated::host_waits() - before;
  check(found == 1, std::to_string(found) + " waits for norms");
});

// Returns a pipeline of two linear layers whose tensors go by way of the hosts.
DistributedPipeline by_way_of_hosts(const std::shared_ptr<World>& world) {
  return DistributedPipeline(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)),
                             DistributedOptions({1, 1})
                                 .checkpoint(Checkpoint::kNever)
                                 .device(testing::device(world->rank()))
                                 .transfers(Transfers::kHost)
                                 .threads(1),
                             world);
}

// By way of the hosts, a message comes into pinned memory, and the receiver's
// thread copies it to the device. The worker copies nothing and waits for
// nothing but its own actions.
const RankProgramEntry kStaging("staging", [](auto& world) {
  DistributedPipeline pipeline = by_way_of_hosts(world);
  constexpr int64_t kMicrobatches = 5, kRows = 2;
  const Tensor input =
      torch::randn({kMicrobatches * kRows, 4}, pipeline->device());
  const auto schedule = one_forward_one_backward(2, kMicrobatches);
  pipeline->train_step(input, input, mean_square, schedule);
  simulated::synchronize();
  simulated::set_microbatch(current_microbatch);
  simulated::take_trace();
  const int64_t pinned = simulated::pinned_bytes_made();
  const int64_t waits = simulated::host_waits();
  pipeline->train_step(input, input, mean_square, schedule);
  const int64_t waited = simulated::host_waits() - waits;
  int64_t by_worker = 0, by_receiver = 0;
  for (const simulated::Given& each : simulated::take_trace()) {
    if (each.name != "a copy from the host") continue;
    ++(each.microbatch ? by_worker : by_receiver);
  }
  const auto expect = [](const std::string& what, int64_t found,
                         int64_t expected) {
    check(found == expected, what + ": " + std::to_string(found) +
                                 " instead of " + std::to_string(expected));
  };
  // Rank 0 gets a gradient for each micro-batch, rank 1 an activation. The
  // totals of the loss come to the device of the last rank.
  const bool last = world->rank() == 1;
  expect("copies by the worker", by_worker, 0);
  expect("copies by the receiver", by_receiver, kMicrobatches + (last ? 1 : 0));
  expect("pinned bytes", simulated::pinned_bytes_made() - pinned,
         // Received, and sent: LibTorch copies to pinned memory.
         2 * kMicrobatches * kRows * 4 * 4);
  // The sender's thread waits for each copy to the host.
  expect("waits", waited,
         2 * kMicrobatches -
             static_cast<int64_t>(internal::RunAhead::kActions) +
             kMicrobatches + (last ? 1 : 0));
  check_no_races();
});

// By way of the hosts, the gradients of a bucket are copied together.
const RankProgramEntry kReplicaWaits("replica waits", [](auto& world) {
  const auto waits_with = [&](int64_t layers) {
    nn::Sequential model;
    for (int64_t k = 0; k < layers; ++k) model->push_back(nn::Linear(4, 4));
    DistributedPipeline pipeline(model,
                                 DistributedOptions({layers})
                                     .data_parallel(2)
                                     .checkpoint(Checkpoint::kNever)
                                     .device(testing::device(world->rank()))
                                     .transfers(Transfers::kHost)
                                     .threads(1),
                                 world);
    const Tensor input = torch::randn({4, 4}, pipeline->device());
    const auto schedule = one_forward_one_backward(1, 2);
    pipeline->train_step(input, input, mean_square, schedule);
    simulated::synchronize();
    const int64_t before = simulated::host_waits();
    pipeline->train_step(input, input, mean_square, schedule);
    return simulated::host_waits() - before;
  };
  const int64_t few = waits_with(1), many = waits_with(10);
  check(few > 0 && few == many, std::to_string(few) + " waits with 1 layer, " +
                                    std::to_string(many) + " with 10");
  check_no_races();
});

// The receiver of rank 1 gets no memory on its device. Both ranks print what
// they catch.
const RankProgramEntry kArrival("arrival", [](auto& world) {
  DistributedPipeline pipeline = by_way_of_hosts(world);
  const Tensor input = torch::randn({4, 4}, pipeline->device());
  auto& failing = simulated::failing(simulated::Operation::kAllocation);
  const auto main = std::this_thread::get_id();
  std::string error = "none";
  // Another allocation in each step, until it is one of the receiver.
  constexpr int64_t kMost = 1000;
  try {
    for (int64_t step = 0; step < kMost; ++step) {
      if (world->rank() == 1) {
        failing.arm(step, [&] {
          const bool receives =
              !current_microbatch() && std::this_thread::get_id() != main;
          TORCH_CHECK(!receives, "the device is broken");
        });
      }
      pipeline->train_step(input, input, mean_square,
                           one_forward_one_backward(2, 2));
    }
  } catch (const PeerError& peer) {
    error = "rank " + std::to_string(peer.failure().rank) + " " +
            peer.failure().what;
  } catch (const c10::Error& own) {
    error = std::string("own: ") + own.what_without_backtrace();
  }
  failing.disarm();
  std::cout << error << std::endl;
});

TEST(InputTest, OnTheHostHasItsGradientThere) {
  expect_ok("input of the host", 2);
}

TEST(DeviceCopies, AnErrorOfTheDeviceIsNotTheFaultOfTheSender) {
  const auto results = expect_ok("arrival", 2);
  EXPECT_EQ(results[1].out, "own: the device is broken\n");
  EXPECT_THAT(results[0].out, HasSubstr("rank 1 the device is broken"));
}

// Returns the bytes of the tensors on the device of this rank.
int64_t bytes_in_use(DistributedPipeline& pipeline) {
  testing::settle_engine(pipeline->device());
  simulated::synchronize();
  return simulated::bytes_in_use(pipeline->device().index());
}

// A rank fails in a copy to the host or back, as its arguments say. Both ranks
// print what they catch.
const RankProgramEntry kCopyFault("copy fault", [](auto& world) {
  DistributedPipeline pipeline(nn::Sequential(nn::Linear(4, 4), nn::Tanh(),
                                              nn::Linear(4, 4), nn::Tanh()),
                               DistributedOptions({2, 2})
                                   .checkpoint(Checkpoint::kNever)
                                   .device(testing::device(world->rank()))
                                   .threads(1),
                               world);
  const Tensor input = torch::randn({8, 4}, pipeline->device());
  const auto step = [&] {
    pipeline->train_step(input, input, mean_square,
                         with_offload(one_forward_one_backward(2, 4),
                                      [](int, int) { return true; }));
  };
  step();
  pipeline->zero_grad();
  const int64_t before = bytes_in_use(pipeline);
  if (!argument("site").empty()) {
    internal::set_fault_hook([](const char* site, int64_t, int64_t i) {
      if (i == 2 && site == argument("site")) throw std::runtime_error("spilt");
    });
  }
  std::string error = "none";
  try {
    step();
  } catch (const PeerError& peer) {
    error = "rank " + std::to_string(peer.failure().rank) + ", " +
            peer.failure().action + ": " + peer.failure().what;
  } catch (const std::runtime_error& own) {
    error = pipeline->last_failure()->place() + ": " + own.what();
  }
  check(bytes_in_use(pipeline) == before, "bytes are left");
  check_no_races();
  std::cout << error << std::endl;
});

TEST(DeviceCopies, ARankReadsAllNumbersOfALossWithOneWait) {
  expect_ok("waits", 1);
}

TEST(DeviceCopies, AReceiverCopiesFromPinnedMemoryBesideTheWorker) {
  expect_ok("staging", 2);
}

TEST(DeviceCopies, TheGradientsOfABucketGoToTheOtherReplicasTogether) {
  expect_ok("replica waits", 2);
}

TEST(DeviceCopies, TheStagesOfARankShareTheStreamsOfTheirHostCopies) {
  expect_ok("host copies", 2);
}

TEST(DeviceCopies, AFailedHostCopyIsAnErrorOnAllRanksAndLeavesNothing) {
  for (const std::string site : {"offload", "reload"}) {
    for (const int at_fault : {0, 1}) {
      SCOPED_TRACE(site + " of rank " + std::to_string(at_fault));
      std::vector<Ranks::Arguments> arguments(2);
      arguments[at_fault] = {{"site", site}};
      const auto results = Ranks("copy fault", arguments).wait();
      expect_all_ok(results);
      const std::string place =
          "partition " + std::to_string(at_fault) + ", micro-batch 2, " + site;
      EXPECT_THAT(results[at_fault].out, HasSubstr(place + ": spilt"));
      EXPECT_THAT(results[1 - at_fault].out,
                  AllOf(HasSubstr("rank " + std::to_string(at_fault)),
                        HasSubstr(place), HasSubstr("spilt")));
    }
  }
}

}  // namespace
}  // namespace gpipe
