// The self-test of direct transfers, between simulated accelerators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/testing/simulated_backend.h"
#include "gpipe/distributed/testing/simulated_ranks.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/testing/cuts.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::Defect;
using testing::expect_all_ok;
using testing::RankProgramEntry;
using testing::RankResult;
using testing::Ranks;
using testing::Subject;

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
  const Subject subject{testing::linear_model, {6}, {3}};
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
  return 0;
});

// Runs `ranks` ranks, where rank 1 has the defect. The world's timeout bounds
// the self-test by a quarter.
std::vector<RankResult> run(int ranks, const std::string& defect,
                            const std::string& device = "") {
  const Ranks::Arguments all{{"timeout_ms", "12000"}, {"device", device}};
  std::vector<Ranks::Arguments> each(ranks, all);
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

TEST(SelfTest, FindsATransferThatHangsWhileTheHostWaitsForTheDevice) {
  expect_host(
      run(2, "needs host"),
      "rank 1 with rank 0: transfers while the host waits for the whole "
      "device: it did not end in the time for the self-test");
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
