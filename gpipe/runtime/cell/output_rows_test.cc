#include "gpipe/runtime/cell/output_rows.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

using ::testing::StartsWith;

// Returns the outputs of micro-batches with these rows.
std::vector<Value> outputs(const std::vector<int64_t>& rows) {
  std::vector<Value> all;
  for (const int64_t each : rows)
    all.push_back(Value::wrap(at::zeros({each, 2})));
  return all;
}

TEST(OtherRows, AreNoneInRowsAndInTheSameMultipleOfThem) {
  EXPECT_EQ(describe_other_rows(outputs({2, 2, 1}), {2, 2, 1}), "");
  EXPECT_EQ(describe_other_rows(outputs({6, 6, 3}), {2, 2, 1}), "");
  EXPECT_EQ(describe_other_rows(outputs({1, 1}), {1, 1}), "");
}

TEST(OtherRows, AreNoneInASingleMicrobatch) {
  EXPECT_EQ(describe_other_rows(outputs({1}), {4}), "");
}

TEST(OtherRows, AreFoundIfLayersReduceThem) {
  EXPECT_THAT(describe_other_rows(outputs({1, 1}), {2, 2}),
              StartsWith("the output of micro-batch 0 (of 2) has 1 row, but "
                         "the input of that micro-batch has 2 rows. "));
  EXPECT_THAT(describe_other_rows(outputs({1, 1, 1}), {3, 3, 2}),
              StartsWith("the output of micro-batch 0 (of 3) has 1 row, "));
}

TEST(OtherRows, AreFoundIfTheyAreTheSameForUnequalMicrobatches) {
  EXPECT_THAT(describe_other_rows(outputs({4, 4}), {2, 1}),
              StartsWith("the output of micro-batch 1 (of 2) has 4 rows, but "
                         "the input of that micro-batch has 1 row. "));
}

TEST(OtherRows, NameTheElement) {
  std::vector<Value> pairs;
  for (int i = 0; i < 2; ++i) {
    pairs.push_back(Value::wrap(
        std::tuple<at::Tensor, at::Tensor>(at::zeros({3, 2}), at::zeros({1}))));
  }
  EXPECT_THAT(describe_other_rows(pairs, {3, 3}),
              StartsWith("element 1 of the output of micro-batch 0 (of 2)"));
}

TEST(OtherRows, AreNoMatterOfUndefinedTensorsAndScalars) {
  std::vector<Value> vectors;
  for (int i = 0; i < 2; ++i) {
    vectors.push_back(Value::wrap(
        std::vector<at::Tensor>{at::Tensor(), at::zeros({}), at::zeros({3})}));
  }
  EXPECT_EQ(describe_other_rows(vectors, {3, 3}), "");
}

}  // namespace
}  // namespace gpipe::internal
