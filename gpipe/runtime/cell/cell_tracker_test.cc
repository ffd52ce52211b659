#include "gpipe/runtime/cell/cell_tracker.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::error_of;

SkipKey key(const std::string& name) { return {Namespace::none(), name}; }

// A partition that imports "in" and "none", and exports "out" and "also".
Partition some_partition() {
  Partition partition;
  partition.index = 1;
  partition.imports = {{key("in"), 0, 1}, {key("none"), 0, 1}};
  partition.exports = {{key("out"), 1, 2}, {key("also"), 1, 3}};
  return partition;
}

TEST(CellTracker, GivesEachImportOnce) {
  const Partition partition = some_partition();
  const Tensor in = at::ones({2});
  CellTracker tracker(partition, {in, std::nullopt});
  EXPECT_TRUE(tracker.find(key("in"))->is_same(in));
  EXPECT_EQ(tracker.find(key("none")), nullptr);
  EXPECT_TRUE(tracker.load(key("in"))->is_same(in));
  EXPECT_FALSE(tracker.load(key("none")).has_value());
  EXPECT_EQ(tracker.find(key("in")), nullptr);
  for (const char* name : {"in", "none", "never"}) {
    EXPECT_EQ(error_of([&] { tracker.load(key(name)); }),
              "c10::Error: '" + std::string(name) + "' has not been stashed");
  }
}

TEST(CellTracker, HoldsATensorNoLongerThanUntilItsPop) {
  const Partition partition = some_partition();
  Tensor in = at::ones({2});
  CellTracker tracker(partition, {in, std::nullopt});
  const Tensor inner = at::ones({2});
  tracker.save(key("inner"), inner);
  EXPECT_EQ(in.use_count(), 2);
  EXPECT_EQ(inner.use_count(), 2);
  tracker.load(key("in"));
  tracker.load(key("inner"));
  EXPECT_EQ(in.use_count(), 1);
  EXPECT_EQ(inner.use_count(), 1);
}

TEST(CellTracker, MovesExportsOutInTheOrderOfThePartition) {
  const Partition partition = some_partition();
  const Tensor out = at::ones({2});
  CellTracker tracker(partition, {std::nullopt, std::nullopt});
  tracker.save(key("also"), std::nullopt);
  tracker.save(key("out"), at::zeros({1}));
  tracker.save(key("out"), out);  // the last one counts
  const auto exported = tracker.take_exported();
  ASSERT_EQ(exported.size(), 2u);
  EXPECT_TRUE(exported[0]->is_same(out));
  EXPECT_FALSE(exported[1].has_value());
  EXPECT_EQ(out.use_count(), 2);
}

TEST(CellTracker, NamesWhatALayerHasNotStashedOrPopped) {
  const Partition partition = some_partition();
  CellTracker tracker(partition, {at::ones({1}), std::nullopt});
  const LayerSkips stashes{"0", {key("out"), key("also")}, {}};
  const LayerSkips pops{"1", {}, {key("in")}};
  tracker.save(key("out"), at::ones({1}));
  EXPECT_EQ(error_of([&] { tracker.check_done(stashes); }),
            "c10::Error: 'also' must be stashed but have not");
  tracker.save(key("also"), at::ones({1}));
  tracker.check_done(stashes);
  EXPECT_EQ(error_of([&] { tracker.check_done(pops); }),
            "c10::Error: 'in' must be popped but have not");
  tracker.load(key("in"));
  tracker.check_done(pops);
  // What an earlier layer has stashed does not count for a later one.
  EXPECT_EQ(error_of([&] { tracker.check_done(stashes); }),
            "c10::Error: 'out' must be stashed but have not");
}

}  // namespace
}  // namespace gpipe::internal
