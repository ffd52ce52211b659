#include "training/files/parameter_rows.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

// Returns an optimizer's tensor: a leaf of its own with the memory of `view`.
at::Tensor own(const at::Tensor& view) { return view.alias().detach(); }

TEST(ShardNameTest, IsReadAsItIsWritten) {
  const auto shard = parse_shard_name("layer[2].weight[3:16]");
  ASSERT_TRUE(shard);
  EXPECT_EQ(shard->parameter, "layer[2].weight");
  EXPECT_EQ(shard->first, 3);
  EXPECT_EQ(shard->end, 16);
  EXPECT_EQ(to_string(*shard), "layer[2].weight[3:16]");
  EXPECT_EQ(parameter_of("layer[2].weight[3:16]"), "layer[2].weight");
}

TEST(ShardNameTest, OtherNamesAreThoseOfWholeParameters) {
  for (const char* const name :
       {"", "weight", "a[1]", "a[1:]", "a[:2]", "a[1:2", "a[1:2]b", "a[-1:2]",
        "a[2:2]", "a[x:2]", "a[1:2x]", "a[]", "["}) {
    EXPECT_FALSE(parse_shard_name(name)) << name;
    EXPECT_EQ(parameter_of(name), name);
  }
}

class ParameterNamesTest : public ::testing::Test {
 protected:
  ParameterNamesTest() {
    names_.insert("weight", weight_);
    names_.insert("tied", weight_);
    names_.insert("scale", scale_);
  }

  std::string key_of(const at::Tensor& tensor) const {
    const auto rows = ParameterNames(names_).find(tensor);
    return rows ? rows->key(rows->names.front()) : "none";
  }

  const at::Tensor weight_ = at::ones({5, 2, 3}), scale_ = at::ones({});
  torch::OrderedDict<std::string, at::Tensor> names_;
};

TEST_F(ParameterNamesTest, FindsAParameterUnderAllItsNames) {
  const auto rows = ParameterNames(names_).find(weight_);
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->names, (std::vector<std::string>{"weight", "tied"}));
  EXPECT_FALSE(rows->is_shard);
  EXPECT_EQ(key_of(weight_), "weight");
}

TEST_F(ParameterNamesTest, FindsTheRowsOfAShard) {
  EXPECT_EQ(key_of(own(weight_.narrow(0, 0, 2))), "weight[0:2]");
  EXPECT_EQ(key_of(own(weight_.narrow(0, 2, 3))), "weight[2:5]");
  const auto all = ParameterNames(names_).find(own(weight_));
  ASSERT_TRUE(all);
  EXPECT_TRUE(all->is_shard);
  EXPECT_EQ(all->key("weight"), "weight");
  EXPECT_EQ(key_of(own(scale_.view({1}))), "scale");
}

TEST_F(ParameterNamesTest, FindsNothingForOtherTensors) {
  EXPECT_EQ(key_of(at::ones({5, 2, 3})), "none");
  EXPECT_EQ(key_of(own(weight_.narrow(1, 0, 1))), "none");
  EXPECT_EQ(key_of(own(weight_.transpose(0, 1))), "none");
  EXPECT_EQ(key_of(own(weight_.view({30}))), "none");
}

}  // namespace
}  // namespace gpipe::internal
