// Two processes train as one process does, and one is told of the end of the
// other, with each transport. On accelerators, each rank has its own device if
// there are two. tools/gpu_check.sh runs the cases one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/backends.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::check;
using testing::device;
using testing::expect_ok;
using ::testing::HasSubstr;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::RankResult;
using testing::Ranks;
namespace nn = torch::nn;

constexpr int64_t kWidth = 256, kChunks = 4;

// Ends this process if it is rank 1, and the test wants that at `place`.
void die_at(const std::string& place, const World& world) {
  if (argument("die_at") == place && world.rank() == 1) ::raise(SIGKILL);
}

// Returns four layers for each rank. A tensor of the first rank skips to the
// last one. Input and output have shape [rows, 1].
nn::Sequential make_layers() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(1, kWidth), nn::Tanh(), testing::Keep(),
                        nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth),
                        nn::Tanh(), testing::Add(), nn::Linear(kWidth, 1));
}

// Runs the shell command of the variable GPIPE_TEST_AT_END, if any, on rank 0
// while both ranks use their devices.
void run_command(const std::shared_ptr<World>& world) {
  const char* const command = std::getenv("GPIPE_TEST_AT_END");
  if (!command) return;
  if (world->rank() == 0) check(std::system(command) == 0, command);
  all_gather(*world, "", "the end of the command");
}

// Steps of two shapes, so that predicted shapes are wrong once. Compares with
// GPipe, which has all layers on this rank's device.
const RankProgramEntry kTrain("train", [] {
  const auto world = World::connect(testing::world_options());
  die_at("connected", *world);
  const auto transfers = parse_transfers(argument("transfers"));
  nn::Sequential layers = make_layers();
  layers->push_back(testing::layer([&](torch::Tensor output) {
    die_at("forward", *world);
    return output;
  }));
  DistributedPipeline pipeline(layers,
                               DistributedOptions({4, 5})
                                   .transfers(transfers)
                                   .device(device(world->rank()))
                                   .threads_per_partition(1),
                               world);
  if (transfers == Transfers::kTested) {
    check(pipeline->transfers() == Transfers::kDirect,
          pipeline->transfers_reason());
  }
  die_at("built", *world);
  const torch::Device here = pipeline->device();
  GPipe alone(
      make_layers(),
      GPipeOptions({4, 4}).devices({here, here}).threads_per_partition(1));
  const auto schedule = one_forward_one_backward(2, kChunks);
  const int64_t rows_of_step[] = {32, 32, 32, 32, 32, 32, 32, 32,
                                  32, 32, 48, 48, 48, 48, 48};
  int step = 0;
  for (const int64_t rows : rows_of_step) {
    const std::string where = "step " + std::to_string(++step) + ": ";
    torch::manual_seed(step);
    const auto input = torch::rand({kChunks * rows, 1});
    const auto target = torch::rand({kChunks * rows, 1});
    pipeline->zero_grad();
    alone->zero_grad();
    const auto found = pipeline->train_step(input.to(here), target.to(here),
                                            mean_square, schedule);
    const auto expected = alone->train_step(input.to(here), target.to(here),
                                            mean_square, schedule);
    check(found.loss.cpu().equal(expected.loss.cpu()), where + "loss");
    const auto parameters = alone->named_parameters();
    for (const auto& each : pipeline->named_parameters()) {
      check(each.value().grad().equal(parameters[each.key()].grad()),
            where + "gradient of " + each.key());
    }
  }
  run_command(world);
  return 0;
});

// Returns layers whose weights are small integers. With inputs and targets of
// that kind, gradients are exact in any order of additions, also with TF32.
nn::Sequential make_exact_layers() {
  nn::Sequential layers;
  torch::manual_seed(0);
  const torch::NoGradGuard no_graph;
  for (int k = 0; k < 3; ++k) {
    nn::Linear layer(nn::LinearOptions(16, 16).bias(false));
    layer->weight.copy_(torch::randint(-1, 2, {16, 16}));
    layers->push_back(layer);
  }
  return layers;
}

// Each rank is a replica and has a half of the rows. Compares with one process
// that has all.
const RankProgramEntry kReplicas("replicas", [] {
  const auto world = World::connect(testing::world_options());
  const torch::Device here = device(world->rank());
  constexpr int64_t kRows = 16;
  const auto loss = [](const torch::Tensor& output,
                       const torch::Tensor& target) {
    return (output * target).sum(1).mean();
  };
  nn::Sequential alone = make_exact_layers();
  alone->to(here);
  const auto transfers = parse_transfers(argument("transfers"));
  for (const bool collective : {false, true}) {
    if (collective && transfers == Transfers::kHost) continue;
    for (const bool shard : {false, true}) {
      DistributedPipeline pipeline(make_exact_layers(),
                                   DistributedOptions({3})
                                       .data_parallel(2)
                                       .transfers(transfers)
                                       .collective_sums(collective)
                                       .shard_optimizer(shard)
                                       .device(here)
                                       .threads_per_partition(1),
                                   world);
      const auto part = [&](const torch::Tensor& all) {
        return all.chunk(2)[world->rank()];
      };
      for (int step = 0; step < 3; ++step) {
        const std::string where =
            std::string(collective ? "collective, " : "") +
            (shard ? "sharded, " : "") + "step " + std::to_string(step) + ": ";
        torch::manual_seed(step);
        const auto input =
            torch::randint(-1, 2, {kRows, 16}, torch::kFloat).to(here);
        const auto target =
            torch::randint(-1, 2, {kRows, 16}, torch::kFloat).to(here);
        pipeline->zero_grad();
        alone->zero_grad();
        const auto found = pipeline->train_step(part(input), part(target), loss,
                                                one_forward_one_backward(1, 2));
        const auto expected = loss(alone->forward(input), target);
        expected.backward();
        check(found.loss.cpu().equal(expected.detach().cpu()), where + "loss");
        const auto owned = pipeline->optimizer_parameters();
        const auto all = alone->parameters();
        check(owned.size() == all.size(), where + "parameters");
        for (std::size_t k = 0; k < all.size(); ++k) {
          const torch::Tensor grad = all[k].grad();
          check(owned[k].grad().equal(shard ? part(grad) : grad),
                where + "gradient " + std::to_string(k));
        }
      }
    }
  }
  return 0;
});

// Returns why two ranks cannot use direct transfers here; empty if they can.
std::string obstacle() {
  if (!internal::backend_of(device().type())) {
    return "this program has no direct transfers between these devices";
  }
  const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (device(0) == device(1) && !shared) return "both ranks have one device";
  return "";
}

void expect_bits_of_one_process(const std::string& transfers) {
  expect_ok("train", 2, {{"transfers", transfers}});
  std::cout << "10 steps and 5 of another shape have the bits of one process"
            << std::endl;
}

TEST(TwoRanks, HaveTheBitsOfOneProcessThroughTheHosts) {
  expect_bits_of_one_process("host");
}

TEST(TwoRanks, HaveTheBitsOfOneProcessByDirectTransfers) {
  if (!obstacle().empty()) GTEST_SKIP() << obstacle();
  expect_bits_of_one_process("direct");
}

TEST(TwoRanks, HaveTheBitsOfOneProcessByTestedTransfers) {
  if (!obstacle().empty()) GTEST_SKIP() << obstacle();
  expect_bits_of_one_process("tested");
}

void expect_sums_of_one_process(const std::string& transfers) {
  expect_ok("replicas", 2, {{"transfers", transfers}});
  std::cout
      << "sums of two replicas, also sharded, have the bits of one process"
      << std::endl;
}

TEST(TwoRanks, AsReplicasHaveTheSumsOfOneProcessThroughTheHosts) {
  expect_sums_of_one_process("host");
}

TEST(TwoRanks, AsReplicasHaveTheSumsOfOneProcessByDirectTransfers) {
  if (!obstacle().empty()) GTEST_SKIP() << obstacle();
  expect_sums_of_one_process("direct");
}

TEST(TwoRanks, AreRefusedDirectTransfersOnOneDevice) {
  if (!internal::backend_of(device().type())) GTEST_SKIP() << obstacle();
  if (device(0) != device(1) || obstacle().empty()) {
    GTEST_SKIP() << "each rank may have a device";
  }
  for (const RankResult& result :
       Ranks("train", 2, {{"transfers", "direct"}}).wait()) {
    EXPECT_EQ(result.exit.code, 1);
    EXPECT_THAT(result.err, HasSubstr("rank 0 has the same device"));
    std::cout << result.err << std::flush;
  }
}

void expect_told_of_the_end_of_rank_1(const std::string& transfers) {
  for (const char* place : {"connected", "built", "forward"}) {
    SCOPED_TRACE(place);
    Ranks ranks("train", 2, {{"transfers", transfers}, {"die_at", place}});
    const auto results = ranks.wait();
    EXPECT_EQ(results[1].exit.signal, SIGKILL);
    EXPECT_EQ(results[0].exit.code, 1);
    EXPECT_THAT(results[0].err, HasSubstr("rank 1 has "));
  }
  std::cout << "rank 0 was told each time: " << transfers << std::endl;
}

TEST(TwoRanks, AreToldOfTheEndOfTheOtherThroughTheHosts) {
  expect_told_of_the_end_of_rank_1("host");
}

TEST(TwoRanks, AreToldOfTheEndOfTheOtherByDirectTransfers) {
  if (!obstacle().empty()) GTEST_SKIP() << obstacle();
  expect_told_of_the_end_of_rank_1("direct");
}

}  // namespace
}  // namespace gpipe
