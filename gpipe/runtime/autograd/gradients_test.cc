#include "gpipe/runtime/autograd/gradients.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::device;
using testing::error_of;
using testing::on_device;
using testing::ones;

Tensor full(at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::TensorOptions().device(testing::device()));
}

TEST(GradSum, OfNothingIsUndefined) {
  GradSum sum;
  sum.add(1, Tensor());
  EXPECT_FALSE(sum.take(0).defined());
  EXPECT_FALSE(sum.take(1).defined());
}

TEST(GradSum, AddsByLeafInOrder) {
  GradSum sum;
  sum.add(0, full({2}, 1.0));
  sum.add(1, full({3}, 10.0));
  sum.add(0, full({2}, 2.0));
  sum.add(0, Tensor());
  sum.add(0, full({2}, 4.0));
  EXPECT_TRUE(at::equal(sum.take(0), full({2}, 7.0)));
  EXPECT_TRUE(at::equal(sum.take(1), full({3}, 10.0)));
}

TEST(GradSum, IsGoneOnceItIsTaken) {
  GradSum sum;
  sum.add(0, ones({2}));
  EXPECT_EQ(sum.take(0).use_count(), 1);
  EXPECT_FALSE(sum.take(0).defined());
}

TEST(GradSum, AddsInPlaceIntoWhatNobodyElseHolds) {
  GradSum sum;
  Tensor first = ones({2});
  const void* memory = first.data_ptr();
  sum.add(0, std::move(first));
  sum.add(0, ones({2}));
  const Tensor taken = sum.take(0);
  EXPECT_EQ(taken.data_ptr(), memory);
  EXPECT_TRUE(at::equal(taken, full({2}, 2.0)));
}

TEST(GradSum, AddsInPlaceIntoAViewThatNobodyElseHoldsTheBaseOf) {
  const auto add_twice = [](Tensor first) {
    GradSum sum;
    sum.add(0, std::move(first));
    sum.add(0, ones({3, 2}));
    return sum.take(0);
  };
  Tensor alone = full({2, 3}, 1.0).t();
  const void* memory = alone.data_ptr();
  EXPECT_EQ(add_twice(std::move(alone)).data_ptr(), memory);

  const Tensor base = full({2, 3}, 1.0);
  EXPECT_NE(add_twice(base.t()).data_ptr(), base.data_ptr());
  EXPECT_TRUE(at::equal(base, full({2, 3}, 1.0)));
  const Tensor other = base.view({6});
  EXPECT_TRUE(at::equal(add_twice(base.t()), full({3, 2}, 2.0)));
  EXPECT_TRUE(at::equal(other, full({6}, 1.0)));
}

TEST(GradSum, LeavesAloneWhatSomebodyElseHolds) {
  const Tensor held = ones({2});
  const Tensor base = ones({4});
  GradSum sum;
  sum.add(0, held);
  sum.add(0, ones({2}));
  sum.add(1, base.narrow(0, 0, 2));
  sum.add(1, ones({2}));
  EXPECT_TRUE(at::equal(sum.take(0), full({2}, 2.0)));
  EXPECT_TRUE(at::equal(sum.take(1), full({2}, 2.0)));
  EXPECT_TRUE(at::equal(held, ones({2})));
  EXPECT_TRUE(at::equal(base, ones({4})));
}

TEST(Separate, CopiesGradientsThatShareMemoryWithAnEarlierOne) {
  const Tensor base = ones({2, 4});
  std::vector<Tensor> grads = {base, Tensor(), ones({3}), base.view({8}),
                               base.narrow(0, 1, 1)};
  const std::vector<Tensor> before = grads;
  separate(grads);
  for (const std::size_t k : {0, 2}) EXPECT_TRUE(grads[k].is_same(before[k]));
  EXPECT_FALSE(grads[1].defined());
  for (const std::size_t k : {3, 4}) {
    EXPECT_TRUE(at::equal(grads[k], before[k]));
    for (std::size_t n = 0; n < k; ++n) {
      EXPECT_FALSE(grads[n].defined() && grads[k].is_alias_of(grads[n]));
    }
  }
}

TEST(Separate, CopiesAGradientThatBeginsBeforeAnEarlierPartOfIt) {
  const Tensor base = ones({3, 4});
  std::vector<Tensor> grads = {base.narrow(0, 1, 1), base};
  const std::vector<Tensor> before = grads;
  separate(grads);
  EXPECT_TRUE(grads[0].is_same(before[0]));
  EXPECT_FALSE(grads[1].is_alias_of(grads[0]));
  EXPECT_TRUE(at::equal(grads[1], base));
}

TEST(Separate, LeavesPartsOfOneMemoryAsTheyAre) {
  const Tensor base = ones({6});
  std::vector<Tensor> grads = {base.narrow(0, 4, 2), base.narrow(0, 0, 3),
                               base.narrow(0, 3, 1), base.narrow(0, 2, 0)};
  const std::vector<Tensor> before = grads;
  separate(grads);
  for (std::size_t k = 0; k < grads.size(); ++k) {
    EXPECT_TRUE(grads[k].is_same(before[k])) << k;
  }
}

TEST(Separate, LooksAtTheElementsOfSparseGradients) {
  if (testing::device().type() == c10::kHPU) {
    GTEST_SKIP() << "the simulated accelerators have no sparse tensors";
  }
  const Tensor values = ones({2});
  const auto sparse = [&] {
    return at::_sparse_coo_tensor_unsafe(on_device(at::arange(2).view({1, 2})),
                                         values, {2});
  };
  std::vector<Tensor> grads = {sparse(), sparse()};
  separate(grads);
  EXPECT_FALSE(grads[1]._values().is_alias_of(grads[0]._values()));
  EXPECT_TRUE(at::equal(grads[1].to_dense(), values));
}

// The gradient of a sum is one element expanded to many.
TEST(GradSum, AddsToAnExpandedGradient) {
  GradSum sum;
  sum.add(0, ones({1}).expand({3}));
  sum.add(0, on_device(at::arange(3)));
  sum.add(0, ones({1}).expand({3}));
  EXPECT_TRUE(at::equal(sum.take(0), on_device(at::arange(3)) + 2.f));
}

TEST(GradSum, AddsSparseAndDense) {
  if (testing::device().type() == c10::kHPU) {
    GTEST_SKIP() << "the simulated accelerators have no sparse tensors";
  }
  const auto sparse = [] {
    return at::sparse_coo_tensor(
        on_device(at::tensor({0, 2}, at::kLong).reshape({1, 2})), ones({2}),
        {3});
  };
  const Tensor expected = on_device(at::tensor({2.f, 0.f, 2.f}));
  GradSum sum;
  sum.add(0, sparse());
  sum.add(0, sparse());
  EXPECT_TRUE(at::equal(sum.take(0).to_dense(), expected));
  sum.add(1, sparse());
  sum.add(1, ones({3}));
  EXPECT_TRUE(at::equal(sum.take(1), on_device(at::tensor({2.f, 1.f, 2.f}))));
  sum.add(2, ones({3}));
  sum.add(2, sparse());
  EXPECT_TRUE(at::equal(sum.take(2), on_device(at::tensor({2.f, 1.f, 2.f}))));
}

at::Tensor scalar(double value) {
  return at::full({1}, value, at::TensorOptions().dtype(at::kDouble));
}

// Adds 1, 1e16 and -1e16 for micro-batches 0, 1 and 2 in the given order, and
// returns the sum. It is 0 if 1 comes first, because 1 + 1e16 is 1e16, and 1 if
// it comes last.
double sum_of(SumOrder order, const std::vector<int>& microbatches) {
  const double values[] = {1, 1e16, -1e16};
  GradSum sums(order, 3);
  for (const int i : microbatches) {
    sums.add(i, 0, scalar(values[i]));
    sums.finish(i);
  }
  return sums.take(0).item<double>();
}

TEST(GradSumOfMicrobatches, AddsAsTheyCome) {
  EXPECT_EQ(sum_of(SumOrder::kAsTheyCome, {0, 1, 2}), 0);
  EXPECT_EQ(sum_of(SumOrder::kAsTheyCome, {2, 1, 0}), 1);
}

TEST(GradSumOfMicrobatches, AddsByMicrobatchWhateverTheOrder) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{
           {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    EXPECT_EQ(sum_of(SumOrder::kByMicrobatch, order), 0);
  }
}

TEST(GradSumOfMicrobatches, AMicrobatchWithoutGradientsPassesItsTurnOn) {
  GradSum sums(SumOrder::kByMicrobatch, 3);
  sums.add(1, 3, scalar(5));
  sums.finish(1);
  sums.finish(0);
  sums.add(2, 3, scalar(2));
  sums.finish(2);
  EXPECT_EQ(sums.take(3).item<double>(), 7);
  EXPECT_FALSE(sums.take(0).defined());
  EXPECT_FALSE(sums.take(3).defined());
}

TEST(GradSumOfMicrobatches, PartsOfAMicrobatchStayTogether) {
  // Micro-batch 1 adds 1e16 before, and -1e16 after, micro-batch 0.
  GradSum sums(SumOrder::kByMicrobatch, 2);
  sums.add(1, 0, scalar(1e16));
  sums.add(0, 0, scalar(1));
  sums.finish(0);
  sums.add(1, 0, scalar(-1e16));
  sums.finish(1);
  EXPECT_EQ(sums.take(0).item<double>(), 0);
}

TEST(GradSumOfMicrobatches, KnowsWhichMicrobatchCompletesTheSums) {
  for (const SumOrder order :
       {SumOrder::kAsTheyCome, SumOrder::kByMicrobatch}) {
    GradSum sums(order, 3);
    for (const int i : {1, 0}) {
      EXPECT_FALSE(sums.last(i));
      sums.finish(i);
      EXPECT_FALSE(sums.complete());
    }
    EXPECT_TRUE(sums.last(2));
    sums.finish(2);
    EXPECT_TRUE(sums.complete());
  }
}

TEST(GradSumOfMicrobatches, NoSumIsCompleteBeforeAnEarlierMicrobatchEnds) {
  // Early gradients are added when micro-batch 0 ends.
  const std::vector<int> order = {2, 1};
  GradSum by_microbatch(SumOrder::kByMicrobatch, 3);
  GradSum as_they_come(SumOrder::kAsTheyCome, 3);
  for (GradSum* const sums : {&by_microbatch, &as_they_come}) {
    for (const int i : order) {
      sums->add(i, 0, scalar(i));
      sums->finish(i);
    }
  }
  EXPECT_FALSE(by_microbatch.last(0));
  EXPECT_TRUE(as_they_come.last(0));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns parameters with gradients, except for the third one, on several
// devices. The last two are on the first device again, as with stages placed in
// a V.
std::vector<Tensor> parameters(const std::vector<c10::Device>& devices) {
  at::manual_seed(1);
  std::vector<Tensor> all;
  for (const int64_t size : {3, 50, 2, 700, 1, 31}) {
    const c10::Device device = devices[std::min(all.size(), 5 - all.size())];
    const Tensor grad = at::randn({size});
    all.push_back(at::zeros({size}, device).set_requires_grad(true));
    if (size != 2) all.back().mutable_grad() = grad.to(device);
  }
  return all;
}

std::vector<Tensor> on(const c10::Device& device) {
  return parameters(std::vector<c10::Device>(3, device));
}

void expect_same_grads(const std::vector<Tensor>& mine,
                       const std::vector<Tensor>& theirs) {
  for (std::size_t k = 0; k < mine.size(); ++k) {
    ASSERT_EQ(mine[k].grad().defined(), theirs[k].grad().defined());
    if (!mine[k].grad().defined()) continue;
    EXPECT_TRUE(mine[k].grad().cpu().equal(theirs[k].grad().cpu())) << k;
  }
}

TEST(ClipGradNorm, OnSeveralDevicesHasTheBitsOfLibTorchOnOne) {
  for (const double type : {2.0, 1.0, 0.0, 3.0, kInfinity, -kInfinity}) {
    for (const double most : {0.0, 0.5, 1e9}) {
      const auto mine = parameters(testing::devices(3));
      const auto theirs = on(testing::reference_device());
      EXPECT_EQ(clip_grad_norm(mine, most, type),
                torch::nn::utils::clip_grad_norm_(theirs, most, type))
          << "norm " << type << ", at most " << most;
      expect_same_grads(mine, theirs);
    }
  }
}

TEST(ClipGradNorm, OfMixedTypesHasTheBitsOfLibTorch) {
  auto mine = on(testing::device()), theirs = on(testing::reference_device());
  for (auto* const all : {&mine, &theirs}) {
    const Tensor& first = all->front();
    all->push_back(
        at::zeros({5}, first.options().dtype(at::kDouble)).requires_grad_());
    all->back().mutable_grad() = at::ones({5}, all->back().options()) / 3;
  }
  EXPECT_EQ(clip_grad_norm(mine, 0.5, 2),
            torch::nn::utils::clip_grad_norm_(theirs, 0.5));
  expect_same_grads(mine, theirs);
}

// Returns parameters with the gradients 3 in row 1 (as 1 + 2, not coalesced)
// and 4 in row 2 of 5 rows, sparse or dense. Their norm is 5.
std::vector<Tensor> with_sparse(bool sparse) {
  const Tensor rows = at::tensor({1, 2, 1}, at::kLong).view({1, 3});
  const Tensor values = at::tensor({1.0, 4.0, 2.0}, at::kDouble).view({3, 1});
  const Tensor grad = at::sparse_coo_tensor(rows, values, {5, 1});
  Tensor parameter =
      at::zeros({5, 1}, grad.options().layout(at::kStrided)).requires_grad_();
  parameter.mutable_grad() = sparse ? grad : grad.to_dense();
  return {parameter};
}

TEST(ClipGradNorm, ScalesSparseGradientsAsDenseOnes) {
  for (const double type : {2.0, 1.0, 0.0, kInfinity}) {
    for (const double most : {0.5, 1e9}) {
      const auto sparse = with_sparse(true), dense = with_sparse(false);
      const double norm = clip_grad_norm(sparse, most, type);
      EXPECT_EQ(norm, clip_grad_norm(dense, most, type)) << "norm " << type;
      EXPECT_TRUE(sparse[0].grad().is_sparse());
      // 1/10 + 2/10 is not 3/10 in binary.
      EXPECT_TRUE(at::allclose(sparse[0].grad().to_dense(), dense[0].grad(),
                               /*rtol=*/1e-15, /*atol=*/0))
          << "norm " << type << ", at most " << most;
    }
  }
  EXPECT_EQ(clip_grad_norm(with_sparse(true), 0.5, 2.0), 5.0);
}

TEST(ClipGradNorm, OfASparseGradientWithoutValuesIsZero) {
  Tensor parameter = at::zeros({5, 1}).requires_grad_();
  parameter.mutable_grad() =
      at::sparse_coo_tensor({5, 1}, parameter.options().layout(at::kSparse));
  for (const double type : {2.0, kInfinity}) {
    EXPECT_EQ(clip_grad_norm({parameter}, 1.0, type), 0.0);
  }
}

TEST(ClipGradNorm, AParameterThatIsThereTwiceCountsOnce) {
  auto twice = on(testing::device());
  const auto once = on(testing::device());
  twice.push_back(twice.front());
  EXPECT_EQ(clip_grad_norm(twice, 0.5, 2), clip_grad_norm(once, 0.5, 2));
  expect_same_grads(once, twice);
}

TEST(ClipGradNorm, AnInfiniteMaximumLeavesEvenInfiniteGradientsAlone) {
  auto clipped = on(testing::device()), before = on(testing::device());
  clipped[1].mutable_grad()[7] = kInfinity;
  before[1].mutable_grad()[7] = kInfinity;
  EXPECT_EQ(clip_grad_norm(clipped, kInfinity, 2), kInfinity);
  expect_same_grads(clipped, before);
}

TEST(ClipGradNorm, ANegativeMaximumOrNanIsRefused) {
  const auto mine = on(testing::device()), before = on(testing::device());
  for (const double most : {-1.0, -kInfinity, std::nan("")}) {
    const std::string refused =
        c10::str("c10::ValueError: clip_grad_norm_() has max_norm ", most,
                 "; give 0 or more, or infinity to scale nothing");
    EXPECT_EQ(error_of([&] { clip_grad_norm(mine, most, 2); }), refused);
    EXPECT_EQ(error_of([&] { clip_grad_norm({}, most, 2); }), refused);
  }
  expect_same_grads(mine, before);
}

TEST(ClipGradNorm, WithoutGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm({}, 1, 2), 0);
  EXPECT_EQ(clip_grad_norm({at::zeros({2})}, 1, 2), 0);
}

const double kNan = std::nan(""), kInf = INFINITY;

torch::Tensor tensor_of(std::vector<double> values) {
  return torch::tensor(values, torch::kDouble).to(device());
}

TEST(NonFiniteTest, CountsWhatIsNotFinite) {
  EXPECT_EQ(non_finite_part(tensor_of({1, -1e308, 0})), std::nullopt);
  EXPECT_EQ(non_finite_part(tensor_of({kNan, 1, kNan})),
            "2 of 3 elements are nan");
  EXPECT_EQ(non_finite_part(tensor_of({kInf, 1, -kInf})),
            "2 of 3 elements are inf");
  EXPECT_EQ(non_finite_part(tensor_of({kNan, 1, kInf, -kInf})),
            "1 of 4 elements are nan and 2 inf");
  EXPECT_EQ(non_finite_part(tensor_of({kNan})), "1 of 1 element is nan");
}

TEST(NonFiniteTest, LooksAtNumbersThatCanBeOtherwiseOnly) {
  EXPECT_EQ(non_finite_part(torch::Tensor()), std::nullopt);
  EXPECT_EQ(non_finite_part(tensor_of({})), std::nullopt);
  EXPECT_EQ(non_finite_part(torch::ones({2}, torch::kLong)), std::nullopt);
  EXPECT_EQ(non_finite_part(torch::ones({2}, torch::kBool)), std::nullopt);
  EXPECT_EQ(non_finite_part(torch::empty({2}, torch::kMeta)), std::nullopt);
  EXPECT_EQ(non_finite_part(torch::full({2}, kInf, torch::kHalf)),
            "2 of 2 elements are inf");
}

TEST(NonFiniteTest, LooksAtTheElementsThatASparseTensorHas) {
  const auto sparse = [](std::vector<double> values) {
    return torch::sparse_coo_tensor(torch::tensor({{0, 3}}),
                                    torch::tensor(values, torch::kDouble), {5},
                                    torch::kDouble);
  };
  EXPECT_EQ(non_finite_part(sparse({1, 2})), std::nullopt);
  EXPECT_EQ(non_finite_part(sparse({1, kNan})), "1 of 2 elements are nan");
  NonFiniteGradients grads;
  grads.watch(sparse({kInf, kInf}), [] { return "w"; });
  EXPECT_EQ(error_of([&] { grads.check(); }),
            "gpipe::NonFiniteError: a gradient is not finite: that of w (2 of "
            "2 elements are inf)");
}

TEST(NonFiniteTest, TellsWhichOfSeveralTensors) {
  check_finite({tensor_of({1}), torch::Tensor()}, "the input");
  EXPECT_EQ(error_of([] { check_finite({tensor_of({kNan})}, "the input"); }),
            "gpipe::NonFiniteError: the input is not finite: 1 of 1 element is "
            "nan");
  EXPECT_EQ(error_of([] {
              check_finite({tensor_of({1}), tensor_of({kInf, 2})}, "the input");
            }),
            "gpipe::NonFiniteError: element 1 of the input is not finite: 1 of "
            "2 elements are inf");
}

TEST(NonFiniteTest, TellsOfAllGradientsUpToEight) {
  NonFiniteGradients grads;
  const auto weight = [](int k) {
    return [k] { return "w" + std::to_string(k); };
  };
  grads.watch(tensor_of({1}), weight(0));
  grads.watch(torch::Tensor(), weight(1));
  grads.check();
  grads.watch(tensor_of({kNan}), weight(2));
  EXPECT_EQ(error_of([&] { grads.check(); }),
            "gpipe::NonFiniteError: a gradient is not finite: that of w2 (1 of "
            "1 element is nan)");
  for (int k = 3; k < 12; ++k) {
    grads.watch(tensor_of({kInf, 0}), weight(k));
  }
  std::string expected =
      "gpipe::NonFiniteError: gradients are not finite (in order of arrival): "
      "those of w2 (1 of 1 element is nan)";
  for (int k = 3; k < 10; ++k) {
    expected += ", w" + std::to_string(k) + " (1 of 2 elements are inf)";
  }
  EXPECT_EQ(error_of([&] { grads.check(); }), expected + " and 2 more");
}

}  // namespace
}  // namespace gpipe::internal
