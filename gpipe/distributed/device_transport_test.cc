// Tensors between simulated accelerators of several ranks, by direct and by
// host transport, have the same bits as in one process on the CPU. The
// self-test finds transports that do not work.
#include "gpipe/distributed/channel/device_transport.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/runner/replica_sums.h"
#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/testing/simulated_backend.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/gpipe.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::check;
using testing::check_no_races;
using testing::CommunicatorProgramEntry;
using testing::expect_all_ok;
using testing::expect_ok;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::RankResult;
using testing::Ranks;
using testing::Setting;
using testing::Subject;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;
using testing::Defect;

// Trains a language model on sequences of unequal lengths, one of them without
// a token that counts. Throws unless the gradients have the bits of one process
// on the CPU.
void train_weighted(const std::shared_ptr<World>& world, Transfers transfers,
                    const std::string& schedule_name) {
  const auto balance =
      testing::cut(testing::token_model()->size(), world->size());
  DistributedPipeline pipeline(testing::token_model(),
                               DistributedOptions(balance)
                                   .device(testing::device(world->rank()))
                                   .transfers(transfers)
                                   .threads(1),
                               world);
  GPipe reference(testing::token_model(),
                  testing::on_cpu(balance, world->size()));
  const auto schedule = named_schedule(schedule_name, world->size(), 8, 1);
  const auto batch = testing::sequences(testing::token_lengths(), 9);
  const auto train = [&](PipelineModule& module) {
    Microbatches<Tensor> tokens;
    for (const Tensor& each : batch.tokens) {
      tokens.parts.push_back(each.to(module.device()));
    }
    return module.train_step(tokens, Microbatches<Tensor>{batch.targets},
                             testing::token_loss, schedule);
  };
  const std::string where =
      std::string(to_string(transfers)) + ", " + schedule_name;
  check(train(*pipeline).loss.cpu().equal(train(*reference).loss),
        where + ": loss");
  testing::check_same_state(*pipeline, *reference, where);
}

const RankProgramEntry kTrain("train", [](auto& world) {
  for (const Transfers transfers : {Transfers::kDirect, Transfers::kHost}) {
    for (const char* name : {"1f1b", "zb-h1"}) {
      train_weighted(world, transfers, name);
    }
    for (const std::string model : {"linear", "skip"}) {
      std::size_t number = 0;
      for (auto& [name, setting] : testing::settings(world->size(), 6, {4})) {
        // The host transport has tests of its own with every schedule.
        const bool some =
            transfers == Transfers::kHost && !testing::is_thorough();
        if (some && number++ % 4 != 0) continue;
        setting.device = testing::device(world->rank());
        setting.transfers = transfers;
        // Five steps of one size, which is predicted; then another size, for
        // which the prediction is wrong.
        testing::train(
            world, testing::subjects().at(model), setting, 6,
            std::string(to_string(transfers)) + ", " + model + ", " + name);
      }
    }
  }
  check_no_races();
});

std::vector<Tensor> parameters_of(DistributedPipeline& pipeline) {
  std::vector<Tensor> parameters;
  for (const Tensor& each : pipeline->parameters()) {
    parameters.push_back(each.cpu());
  }
  return parameters;
}

void check_same(const std::vector<Tensor>& host,
                const std::vector<Tensor>& direct, const std::string& where) {
  check(!host.empty() && host.size() == direct.size(), where + "parameters");
  for (std::size_t k = 0; k < host.size(); ++k) {
    check(host[k].equal(direct[k]), where + "parameter " + std::to_string(k));
  }
}

// Returns the parameters of this rank after some steps.
std::vector<Tensor> train_replicas(const std::shared_ptr<World>& world,
                                   Transfers transfers, int replicas = 2,
                                   bool collective = false,
                                   bool shard = false) {
  const Subject& subject = testing::subjects().at("linear");
  nn::Sequential layers = testing::make(subject);
  DistributedPipeline pipeline(
      layers,
      DistributedOptions(testing::cut(layers->size(), world->size() / replicas))
          .data_parallel(replicas)
          .device(testing::device(world->rank()))
          .transfers(transfers)
          .collective_sums(collective)
          .shard_optimizer(shard)
          .threads(1),
      world);
  check(pipeline->transfers() == transfers, "transfers");
  torch::optim::SGD optimizer(pipeline->optimizer_parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto& layout = pipeline->layout();
  const Schedule schedule = one_forward_one_backward(layout.ranks, 3);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(100 * step + layout.replica);
    const Tensor input = torch::randn({6, 6}, torch::kDouble);
    const Tensor target = torch::randn({6, 3}, torch::kDouble);
    optimizer.zero_grad();
    pipeline->train_step(input.to(pipeline->device()),
                         target.to(pipeline->device()), mean_square, schedule);
    optimizer.step();
    pipeline->share_parameters();
  }
  return parameters_of(pipeline);
}

const RankProgramEntry kReplicas("replicas", [](auto& world) {
  const auto host = train_replicas(world, Transfers::kHost);
  const auto direct = train_replicas(world, Transfers::kDirect);
  check_same(host, direct, "");
  // Two numbers have the same sum in either order.
  for (const bool shard : {false, true}) {
    check_same(host, train_replicas(world, Transfers::kDirect, 2, true, shard),
               "collective sums, ");
  }
  check_no_races();
});

// Returns how many operations on the device of this rank had `name`.
int64_t count_in_trace(const std::string& name) {
  const auto trace = simulated::take_trace();
  return std::ranges::count_if(
      trace, [&](const simulated::Given& each) { return each.name == name; });
}

// Trains with as many replicas as ranks.
const RankProgramEntry kCollectives("collectives", [](auto& world) {
  const auto communicator = internal::communicator_of(*world);
  const int replicas = world->size();
  const auto host = train_replicas(world, Transfers::kHost, replicas);
  check_same(host, train_replicas(world, Transfers::kHost, replicas, true),
             "no collective operations through the hosts, ");
  simulated::take_trace();
  for (const bool shard : {false, true}) {
    const auto direct =
        train_replicas(world, Transfers::kDirect, replicas, true, shard);
    check(count_in_trace(shard ? "a direct reduce-scatter"
                               : "a direct all-reduce") > 0,
          "collective operations");
    for (std::size_t k = 0; k < host.size(); ++k) {
      check(direct[k].allclose(host[k], 1e-12, 1e-12), "parameters");
      const auto bytes = internal::bytes_of(direct[k]);
      const std::string mine(static_cast<const char*>(bytes.const_data_ptr()),
                             bytes.numel());
      for (const std::string& each :
           internal::all_gather(*communicator, 1, mine, "comparing")) {
        check(each == mine, "equal replicas");
      }
    }
  }
  check_no_races();
});

// Adds up tensors of several dtypes in the order of the simulated backend, from
// the last member to the first.
const CommunicatorProgramEntry kSums("collective sums", [](auto& world) {
  const int ranks = world->size();
  const auto transport = internal::make_transport(
      world, testing::device(world->rank()), Transfers::kDirect, "the test");
  const std::vector<int> everybody = world->all_ranks();
  // Undefined on rank 1, on all ranks but the first, and on all.
  const auto gradients_of = [&](int rank, torch::Dtype type) {
    torch::manual_seed(rank);
    std::vector<Tensor> all;
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{5, 7}, {3}, {}, {0}, {2, 2}}) {
      all.push_back(torch::randn(sizes, torch::kDouble).to(type));
    }
    if (rank == 1) all[1] = Tensor();
    if (rank > 0) all[2] = Tensor();
    all[4] = Tensor();
    return all;
  };
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16,
                          torch::kComplexFloat}) {
    std::vector<internal::Summand> whole;
    std::vector<Tensor> expected(5);
    for (int rank = ranks - 1; rank >= 0; --rank) {
      const auto theirs = gradients_of(rank, type);
      for (std::size_t k = 0; k < expected.size(); ++k) {
        if (!theirs[k].defined()) continue;
        expected[k] =
            expected[k].defined() ? expected[k] + theirs[k] : theirs[k].clone();
      }
    }
    const std::vector<std::vector<int64_t>> sizes{{5, 7}, {3}, {}, {0}, {2, 2}};
    const auto mine = gradients_of(world->rank(), type);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      whole.push_back({torch::zeros(sizes[k], type), mine[k]});
    }
    std::vector<internal::Summand> rows = whole;
    internal::all_reduce(*world, *transport, everybody, 1, whole,
                         internal::kBucketBytes,
                         internal::SumMethod::kCollective);
    internal::Reducer(*world, *transport, everybody, 1,
                      internal::SumShare::kOwnRows,
                      internal::SumMethod::kCollective)
        .add_up(rows.data(), rows.data() + rows.size());
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const Tensor own =
          internal::slice_of_member(expected[k], ranks, world->rank());
      const std::string where = "tensor " + std::to_string(k);
      check(whole[k].grad.defined() == expected[k].defined(), where);
      check(rows[k].grad.defined() == own.defined(), where + ", rows");
      if (!expected[k].defined()) continue;
      check(whole[k].grad.cpu().equal(expected[k]), where + ", sum");
      if (own.defined()) check(rows[k].grad.cpu().equal(own), where + ", rows");
    }
  }
  check_no_races();
});

// A layer that waits for its whole device in the forward and in the backward,
// as the allocator of a full device does before it returns memory.
struct WaitForDeviceImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    Tensor y = wait(x).mul(1);
    if (y.requires_grad()) y.register_hook(wait);
    return y;
  }
  static Tensor wait(const Tensor& x) {
    c10::impl::VirtualGuardImpl(x.device().type())
        .synchronizeDevice(x.device().index());
    return x;
  }
};
TORCH_MODULE(WaitForDevice);

// Returns the parameters of this rank after steps in which all ranks wait for
// their devices again and again.
std::vector<Tensor> train_with_waits(const std::shared_ptr<World>& world,
                                     Transfers transfers,
                                     const std::string& schedule) {
  torch::manual_seed(5);
  nn::Sequential layers;
  for (int r = 0; r < world->size(); ++r) {
    layers->push_back(nn::Linear(4, 4));
    layers->push_back(WaitForDevice());
  }
  DistributedPipeline pipeline(
      layers,
      DistributedOptions(std::vector<int64_t>(world->size(), 2))
          .device(testing::device(world->rank()))
          .transfers(transfers)
          .threads(1),
      world);
  auto optimizer = testing::optimizer_of(pipeline);
  // Several steps of one size are predicted; the last one is not.
  for (const int64_t rows : {8, 8, 8, 8, 16}) {
    const Tensor input = torch::randn({rows, 4}).to(pipeline->device());
    optimizer.zero_grad();
    pipeline->train_step(input, input, mean_square,
                         named_schedule(schedule, world->size(), 4, 1));
    optimizer.step();
  }
  return parameters_of(pipeline);
}

const RankProgramEntry kWaits("waits for the device", [](auto& world) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    const auto host = train_with_waits(world, Transfers::kHost, schedule);
    const auto direct = train_with_waits(world, Transfers::kDirect, schedule);
    check_same(host, direct, schedule + ", ");
  }
  check_no_races();
});

// Transfers use no stream of the pool that computations get theirs from.
const RankProgramEntry kStreams("streams", [](auto& world) {
  const c10::Device own = testing::device(world->rank());
  std::vector<internal::OwnedStream> pool;
  std::set<c10::StreamId> computing;
  for (int k = 0; k < 32; ++k) {
    computing.insert(pool.emplace_back(own).get()->id());
  }
  train_with_waits(world, Transfers::kDirect, "1f1b");
  int transfers = 0;
  for (const simulated::Given& each : simulated::take_trace()) {
    if (each.name.rfind("a direct ", 0) != 0) continue;
    ++transfers;
    check(computing.count(each.stream.id()) == 0, "a stream of computations");
  }
  check(transfers > 0, "transfers");
});

const RankProgramEntry kAgree("agree", [] {
  WorldOptions options = world_options();
  options.backend = "gloo";
  const auto world = internal::Communicator::connect(options);
  const auto agreed = [&](const c10::Device& device, Transfers asked) {
    try {
      std::cout
          << to_string(
                 internal::agree_on_transfers(*world, 1, device, asked).first)
          << std::endl;
    } catch (const c10::ValueError& error) {
      std::cout << error.what_without_backtrace() << std::endl;
    }
  };
  const c10::Device own = testing::device(world->rank());
  const c10::Device cpu(c10::kCPU);
  agreed(own, Transfers::kAuto);
  agreed(own, Transfers::kDirect);
  agreed(own, Transfers::kHost);
  agreed(testing::device(0), Transfers::kAuto);
  agreed(testing::device(0), Transfers::kDirect);
  agreed(world->rank() == 1 ? cpu : own, Transfers::kAuto);
  agreed(world->rank() == 1 ? cpu : own, Transfers::kDirect);
  return 0;
});

// A world has all backends of the program, and uses the one for accelerators if
// it works.
const CommunicatorProgramEntry kNamed("named", [](auto& world) {
  check(world->options().backend == "cpu:gloo,hpu:simulated", "the backend");
  for (const c10::Device& device :
       {testing::device(world->rank()), c10::Device(c10::kCPU)}) {
    const auto [transfers, reason] =
        internal::agree_on_transfers(*world, 1, device, Transfers::kAuto);
    std::cout << to_string(transfers) << ": " << reason << std::endl;
  }
});

// Rank 1 dies while rank 0 closes its transports, which waits for rank 1.
const RankProgramEntry kLeave("leave", [](auto& world) {
  {
    DistributedPipeline pipeline(nn::Sequential(nn::Linear(4, 4), nn::ReLU()),
                                 DistributedOptions({1, 1})
                                     .device(testing::device(world->rank()))
                                     .transfers(Transfers::kDirect)
                                     .threads(1),
                                 world);
    const Tensor input = torch::randn({8, 4}, pipeline->device());
    pipeline->train_step(input, input, mean_square,
                         one_forward_one_backward(2, 4));
    if (world->rank() == 1) {
      internal::communicator_of(*world)->store().wait({"rank 0 leaves"});
      std::raise(SIGKILL);
    }
    internal::communicator_of(*world)->store().set("rank 0 leaves",
                                                   std::vector<uint8_t>());
  }
  const auto failure = world->failure();
  check(failure && failure->rank == 1, "rank 1 is at fault");
});

TEST(DeviceTransport, GivesTheBitsOfOneProcessByEverySchedule) {
  for (const int ranks : {2, 4}) expect_ok("train", ranks);
}

TEST(DeviceTransport, EndsAlthoughRanksWaitForTheirWholeDevices) {
  for (const int ranks : {2, 3}) expect_ok("waits for the device", ranks);
}

TEST(DeviceTransport, HasStreamsThatComputationsDoNotShare) {
  expect_ok("streams", 2);
}

TEST(DeviceTransport, AddsUpReplicasAsTheWayThroughTheHostsDoes) {
  expect_ok("replicas", 4);
}

TEST(DeviceTransport, AddsUpReplicasByCollectiveOperationsIfAsked) {
  for (const int ranks : {3, 4}) expect_ok("collectives", ranks);
}

TEST(DeviceTransport, HasTheSumsOfTheCollectiveOperationsToTheBit) {
  for (const int ranks : {2, 3, 4}) expect_ok("collective sums", ranks);
}

TEST(DeviceTransport, IsForThoseWhoAskIfAllRanksCan) {
  const auto results = expect_ok("agree", 2);
  for (const RankResult& each : results) {
    EXPECT_EQ(
        each.out,
        "host\ndirect\nhost\n"
        "host\ndirect transfers are not possible here (rank 1: rank 0 "
        "has the same device, hpu:0; give each rank a device of its own); "
        "choose Transfers::kHost\n"
        "host\ndirect transfers are not possible here (rank 1: the "
        "program has no engine for direct transfers from cpu); choose "
        "Transfers::kHost\n");
  }
}

TEST(DeviceTransport, IsTestedAndTakenIfTheBackendOfTheWorldNamesIt) {
  const auto results = expect_ok("named", 2);
  for (const RankResult& each : results) {
    EXPECT_EQ(each.out,
              "direct: the self-test of direct transfers has passed on all "
              "ranks\n"
              "host: direct transfers are not possible here (rank 0: the "
              "program has no engine for direct transfers from cpu)\n");
  }
}

TEST(DeviceTransport, HasANameForEachWay) {
  for (const Transfers each : {Transfers::kAuto, Transfers::kHost,
                               Transfers::kDirect, Transfers::kTested}) {
    EXPECT_EQ(parse_transfers(to_string(each)), each);
  }
  try {
    parse_transfers("nccl");
    ADD_FAILURE();
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "transfers must be auto, host, direct or tested, not 'nccl'");
  }
}

TEST(DeviceTransport, EndsWhenARankDiesWhileAnotherOneCloses) {
  const auto results = Ranks("leave", 2).wait();
  EXPECT_EQ(results[0].exit.code, 0) << results[0].err;
  EXPECT_EQ(results[1].exit.signal, SIGKILL);
}

// Prints the transport of a pipeline with kTested and the reason, and compares
// the bits of some steps with those of one process.
const RankProgramEntry kTested("tested", [] {
  const std::map<std::string, Defect> defects{
      {"", Defect::kNone},
      {"wrong bytes", Defect::kWrongBytes},
      {"one direction", Defect::kOneDirection},
      {"needs host", Defect::kNeedsHost},
      {"keeps receives", Defect::kKeepsReceives}};
  testing::set_defect(defects.at(argument("defect")));
  testing::set_shares_devices(argument("device") == "shared");
  const auto world = World::connect(testing::world_options());
  torch::set_num_threads(1);
  const Subject& subject = testing::subjects().at("linear");
  auto setting = testing::settings(world->size(), 6, {4}).begin()->second;
  setting.device =
      testing::device(argument("device") == "" ? world->rank() : 0);
  setting.transfers = Transfers::kTested;
  {
    auto layers = testing::make(subject);
    DistributedPipeline pipeline(
        layers,
        DistributedOptions(testing::cut(layers->size(), world->size()))
            .device(setting.device)
            .transfers(Transfers::kTested)
            .threads(1),
        world);
    std::cout << to_string(pipeline->transfers()) << ": "
              << pipeline->transfers_reason() << std::endl;
  }
  testing::train(world, subject, setting, 2, "tested");
  testing::check_no_races();
  testing::check(simulated::devices_with_context() ==
                     std::vector<c10::DeviceIndex>{setting.device.index()},
                 "a rank makes a context on its own device only");
  return 0;
});

// Runs `ranks` ranks, where rank 1 has the defect. The world's timeout bounds
// the self-test by a quarter; that of rank `first` is the shortest.
std::vector<RankResult> run(int ranks, const std::string& defect,
                            const std::string& device = "", int first = 0) {
  std::vector<Ranks::Arguments> each(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    each[rank] = {{"timeout_ms", rank == first ? "12000" : "14000"},
                  {"device", device}};
  }
  each[1].emplace_back("defect", defect);
  auto results = Ranks("tested", each).wait();
  expect_all_ok(results);
  return results;
}

void expect_host(const std::vector<RankResult>& results,
                 const std::string& check) {
  for (const RankResult& each : results) {
    EXPECT_THAT(each.out,
                ::testing::StartsWith(
                    "host: the self-test of direct transfers has failed: "));
    EXPECT_THAT(each.out, ::testing::HasSubstr(check));
    EXPECT_EQ(each.out, results[0].out);
  }
}

TEST(SelfTest, GoesDirectIfAllRanksPass) {
  for (const int ranks : {2, 3}) {
    for (const RankResult& each : run(ranks, "")) {
      EXPECT_EQ(each.out,
                "direct: the self-test of direct transfers has passed on all "
                "ranks\n");
    }
  }
}

TEST(SelfTest, FindsWrongBytes) {
  expect_host(run(2, "wrong bytes"),
              "rank 1 with rank 0: transfers in both directions at once: "
              "message 0 of 1048577 bytes arrived with wrong bytes");
}

TEST(SelfTest, FindsADirectionThatHangs) {
  expect_host(run(2, "one direction"),
              "rank 1 with rank 0: transfers in both directions at once: ");
}

// Both ranks name the time, whichever reaches its end first.
TEST(SelfTest, FindsATransferThatHangsWhileTheHostWaitsForTheDevice) {
  const std::string late =
      "transfers while the host waits for the whole device: it did not end in "
      "the time for the self-test";
  for (const int first : {0, 1}) {
    expect_host(
        run(2, "needs host", "", first),
        "rank 0 with rank 1: " + late + "; rank 1 with rank 0: " + late);
  }
}

TEST(SelfTest, FindsAReceiveThatAnAbortDoesNotEnd) {
  expect_host(
      run(2, "keeps receives"),
      "rank 1 with rank 0: a receive that is aborted: it did not end in "
      "the time for the self-test");
}

TEST(SelfTest, ADefectBetweenTwoRanksCountsForAll) {
  expect_host(run(3, "wrong bytes"), "rank 1 with rank 0: ");
}

TEST(SelfTest, RanksThatCannotTransferDirectlyUseTheHosts) {
  for (const RankResult& each : run(2, "", "same")) {
    EXPECT_EQ(each.out,
              "host: direct transfers are not possible here (rank 1: rank 0 "
              "has the same device, hpu:0; give each rank a device of its "
              "own)\n");
  }
}

TEST(SelfTest, RanksShareADeviceWhereTheBackendAllowsIt) {
  for (const RankResult& each : run(2, "", "shared")) {
    EXPECT_EQ(each.out,
              "direct: the self-test of direct transfers has passed on all "
              "ranks\n");
  }
}

}  // namespace
}  // namespace gpipe
