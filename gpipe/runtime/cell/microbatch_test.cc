#include "gpipe/runtime/cell/microbatch.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "gpipe/schedule/microbatches.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::error_of;
using testing::on_device;
using testing::ones;
using ::testing::StartsWith;
using Tensors = std::vector<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;

TEST(CheckInput, PassesTensorsVectorsAndTuples) {
  const Tensor x = ones({2, 1});
  check_input(Value::wrap(x), testing::device());
  check_input(Value::wrap(Tensors{Tensor(), x, ones({2})}), testing::device());
  check_input(Value::wrap(Pair(x, ones({2, 5}))), testing::device());
  check_input(Value::wrap(ones({0, 3})), testing::device());
}

TEST(CheckInput, LeavesUnsplitElementsOut) {
  const Pair input(ones({8}), ones({3, 5}));
  check_input(Value::wrap(input), testing::device(), {1});
  check_input(Value::wrap(Pair(ones({8}), ones({}))), testing::device(), {1});
  EXPECT_EQ(rows_of(Value::wrap(input), {0}), 3);
  const auto error = [](const Value& value, const Unsplit& unsplit) {
    return error_of([&] { check_input(value, testing::device(), unsplit); });
  };
  EXPECT_EQ(error(Value::wrap(input), {2}),
            "c10::ValueError: the option unsplit names element 2 of the input, "
            "but the input is a tuple of 2 tensors; elements of a vector or a "
            "tuple are counted from 0");
  EXPECT_THAT(error(Value::wrap(ones({8})), {0}),
              StartsWith("c10::ValueError: the option unsplit names element 0 "
                         "of the input, but the input is a tensor;"));
  EXPECT_THAT(error(Value::wrap(input), {0, 1}),
              StartsWith("c10::ValueError: the input holds no defined tensor "
                         "beside those of unsplit, so that"));
  EXPECT_EQ(error_of([] {
              check_unsplit({0, 2, 0});
            }),
            "c10::ValueError: the option unsplit must name elements of the "
            "input, each once, counted from 0 (unsplit: [0, 2, 0])");
  EXPECT_NE(error_of([] { check_unsplit({-1}); }), "");
}

TEST(CheckInput, TakesPartsOfAnyShapes) {
  const auto check = [](std::vector<Value> parts) {
    return error_of(
        [&] { check_input(Batch(std::move(parts)), testing::device()); });
  };
  EXPECT_EQ(check({Value::wrap(ones({2, 3})), Value::wrap(ones({}))}), "");
  EXPECT_EQ(check({}),
            "c10::ValueError: Microbatches::parts is empty; give at least one "
            "part");
  EXPECT_EQ(check({Value::wrap(ones({2})), Value::wrap(Tensor())}),
            "c10::TypeError: part 1 of the input is an undefined tensor");
  EXPECT_EQ(count_microbatches(
                Batch(std::vector<Value>(3, Value::wrap(ones({2})))), 8),
            3);
}

TEST(HasRowDimension, AsksAllDefinedTensors) {
  EXPECT_TRUE(has_row_dimension(Value::wrap(ones({0, 3}))));
  EXPECT_TRUE(
      has_row_dimension(Value::wrap(Tensors{Tensor(), ones({}), ones({2})})));
  EXPECT_FALSE(has_row_dimension(Value::wrap(Tensors{Tensor(), ones({})})));
  EXPECT_FALSE(has_row_dimension(Value::wrap(Tensors())));
}

TEST(Scatter, GivesViewsOfTheRows) {
  const Tensor x = on_device(at::arange(10)).reshape({5, 2});
  const auto pieces = scatter(Value::wrap(x), {3, 2});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_TRUE(at::equal(pieces[0].tensors()[0], x.narrow(0, 0, 3)));
  EXPECT_TRUE(at::equal(pieces[1].tensors()[0], x.narrow(0, 3, 2)));
  EXPECT_TRUE(pieces[1].tensors()[0].is_alias_of(x));
}

TEST(Scatter, TakesASparseTensorAsOneMicrobatchOnly) {
  const Tensor x = at::eye(4).to_sparse();
  const auto pieces = scatter(Value::wrap(x), {4});
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_TRUE(pieces[0].tensors()[0].is_sparse());
  EXPECT_EQ(error_of([&] {
              scatter(Value::wrap(x), {2, 2});
            }),
            "c10::ValueError: the input is Sparse, which LibTorch does not "
            "split into micro-batches; split it yourself and pass "
            "Microbatches, or use one micro-batch");
}

TEST(Scatter, KeepsTheKindAndWhatIsUndefined) {
  const Tensor x = ones({2, 1});
  const auto vectors = scatter(Value::wrap(Tensors{Tensor(), x}), {1, 1});
  ASSERT_EQ(vectors.size(), 2u);
  for (const Value& piece : vectors) {
    EXPECT_EQ(piece.kind(), Value::Kind::kVector);
    ASSERT_EQ(piece.tensors().size(), 2u);
    EXPECT_FALSE(piece.tensors()[0].defined());
    EXPECT_EQ(piece.tensors()[1].size(0), 1);
  }
  EXPECT_EQ(scatter(Value::wrap(std::tuple<Tensor>(x)), {1, 1})[0].kind(),
            Value::Kind::kTuple);
}

TEST(Scatter, KeepsAnUnsplitElementWhole) {
  const Tensor x = ones({2, 1}), mask = ones({5});
  const auto pieces = scatter(Value::wrap(Tensors{x, mask}), {1, 1}, {1});
  for (const Value& piece : pieces) {
    EXPECT_TRUE(piece.tensors()[1].is_same(mask));
    EXPECT_EQ(piece.tensors()[0].size(0), 1);
  }
}

TEST(SplitRows, AreThoseOfChunkOrElseOfTensorSplit) {
  for (int64_t rows = 1; rows < 40; ++rows) {
    for (int64_t count = 1; count <= rows; ++count) {
      const Tensor x = at::arange(rows);
      auto pieces = at::chunk(x, count);
      const std::size_t chunks = pieces.size();
      EXPECT_EQ(chunk_rows(rows, count).size(), chunks);
      if (static_cast<int64_t>(chunks) < count) {
        pieces = at::tensor_split(x, count);
      }
      std::vector<int64_t> sizes;
      for (const Tensor& piece : pieces) sizes.push_back(piece.size(0));
      EXPECT_EQ(split_rows(rows, count), sizes) << rows << " in " << count;
    }
  }
}

TEST(Gather, ReturnsASinglePieceAsItIs) {
  const Tensor scalar = on_device(at::scalar_tensor(1));
  EXPECT_TRUE(gather({Value::wrap(scalar)}).tensors()[0].is_same(scalar));
}

TEST(Gather, RefusesAnElementThatIsDefinedInSomePiecesOnly) {
  const Value with = Value::wrap(Tensors{ones({1})});
  const Value without = Value::wrap(Tensors{Tensor()});
  EXPECT_EQ(error_of([&] {
              gather({with, without});
            }),
            "c10::ValueError: element 0 of the output is undefined in some "
            "micro-batches only (such as micro-batch 1)");
  EXPECT_EQ(error_of([&] {
              gather({without, with});
            }),
            "c10::ValueError: element 0 of the output is undefined in some "
            "micro-batches only (such as micro-batch 0)");
}

TEST(Gather, ReversesScatter) {
  for (int64_t rows = 0; rows < 10; ++rows) {
    for (int64_t chunks = 1; chunks < 6; ++chunks) {
      const Tensor x = on_device(at::arange(2 * rows)).reshape({rows, 2});
      const Value value = Value::wrap(Tensors{x, Tensor(), x * 2});
      const Value back = gather(scatter(value, chunk_rows(rows, chunks)));
      EXPECT_TRUE(at::equal(back.tensors()[0], x));
      EXPECT_FALSE(back.tensors()[1].defined());
      EXPECT_TRUE(at::equal(back.tensors()[2], x * 2));
    }
  }
}

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
  EXPECT_EQ(describe_other_rows(outputs({0, 0}), {0, 0}), "");
  EXPECT_EQ(describe_other_rows(outputs({0, 4}), {0, 2}), "");
}

TEST(OtherRows, AreNoneInASingleMicrobatch) {
  EXPECT_EQ(describe_other_rows(outputs({1}), {4}), "");
}

TEST(OtherRows, AreFoundIfLayersReduceThem) {
  EXPECT_THAT(describe_other_rows(outputs({1, 1}), {2, 2}),
              StartsWith("the output of micro-batch 0 (of 2) has 1 row, but "
                         "the input of that micro-batch has 2 rows. "));
  EXPECT_THAT(describe_other_rows(outputs({1, 1}), {0, 0}),
              ::testing::HasSubstr(
                  "micro-batch 0 (of 2) has 1 row, but the input of that "
                  "micro-batch has 0 rows"));
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
