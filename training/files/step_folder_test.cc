#include "training/files/step_folder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "gpipe/testing/thrown.h"
#include "training/files/tensor_file.h"

namespace gpipe::internal {
namespace {

OptimizerState::Parameter rows(const at::Tensor& momentum, int64_t step = 4) {
  return {0, {{"step", step}}, {{"momentum_buffer", momentum}}};
}

std::string damage_of(OptimizerState state) {
  return testing::thrown<Damage>([&] { join_shards(state); }, "none");
}

TEST(IsLeftoverTest, AnyNameOfAnotherMachineIsUnderstood) {
  for (const char* const host : {"web", "a-b", "web.old", "web.older.org"}) {
    const std::string name = std::string(".step-000000000007.tmp-") + host;
    for (const char* const rest : {"-4711", "-4711.old"}) {
      EXPECT_TRUE(is_leftover(name + rest, 7)) << name << rest;
      EXPECT_FALSE(is_leftover(name + rest, 6)) << name << rest;
    }
    EXPECT_FALSE(is_leftover(name, 7));
  }
}

TEST(JoinShardsTest, PutsRowsTogetherInTheirOrder) {
  const at::Tensor all = at::arange(24).view({12, 2});
  OptimizerState state;
  // In the order of the names, "[10:12]" comes before "[3:10]".
  state.parameters["a[0:3]"] = rows(all.narrow(0, 0, 3));
  state.parameters["a[10:12]"] = rows(all.narrow(0, 10, 2));
  state.parameters["a[3:10]"] = rows(all.narrow(0, 3, 7));
  state.parameters["b"] = rows(all);
  state.parameters["c[0:1]"] = {1, {}, {}};  // the optimizer has not used it
  state.parameters["c[1:2]"] = {1, {}, {}};
  join_shards(state);
  ASSERT_EQ(state.parameters.size(), 3u);
  for (const char* const name : {"a", "b"}) {
    const auto& parameter = state.parameters.at(name);
    EXPECT_TRUE(at::equal(parameter.tensors.at("momentum_buffer"), all));
    EXPECT_EQ(parameter.counts.at("step"), 4);
  }
  EXPECT_EQ(state.parameters.at("c").group, 1u);
  EXPECT_TRUE(state.parameters.at("c").tensors.empty());
}

TEST(JoinShardsTest, RowsThatAreMissingOrDifferAreDamage) {
  const at::Tensor two = at::arange(4).view({2, 2});
  OptimizerState state;
  state.parameters["a[2:4]"] = rows(two);
  EXPECT_EQ(damage_of(state),
            "the rows of the optimizer's state of 'a' do not fit together at "
            "row 0");
  state.parameters["a[0:2]"] = rows(two);
  EXPECT_EQ(damage_of(state), "none");
  state.parameters["a[5:7]"] = rows(two);
  EXPECT_NE(damage_of(state).find("at row 4"), std::string::npos);
  state.parameters.erase("a[5:7]");
  state.parameters["a[2:4]"] = rows(two, /*step=*/5);
  EXPECT_NE(damage_of(state).find("at row 2"), std::string::npos);
  state.parameters["a[2:4]"] = rows(two);
  state.parameters["a"] = rows(two);
  EXPECT_EQ(damage_of(state),
            "the optimizer's state of 'a' is there as a whole and in rows");
}

}  // namespace
}  // namespace gpipe::internal
