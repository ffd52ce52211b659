#include "models/exported/comparison.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/testing/files.h"

namespace gpipe::exported {
namespace {

using gpipe::testing::value_error_of;

ExportedStep step_with(const at::Tensor& output, const at::Tensor& grad) {
  ExportedStep step;
  step.outputs = {output};
  step.grads.insert("w", grad);
  return step;
}

TEST(ComparisonTest, EqualStepsAreBitEqualAlsoWithNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto step = [&] {
    return step_with(at::tensor({1.0, nan}), at::tensor({2, 3}));
  };
  const StepDifference found = differences(step(), step());
  EXPECT_TRUE(found.outputs.equal_bits);
  EXPECT_EQ(found.outputs.tensors, 1);
  EXPECT_EQ(text_of(found.grads, "gradients"), "1 gradients bit-equal");
  EXPECT_EQ(found.buffers.tensors, 0);
}

TEST(ComparisonTest, ZerosOfOtherSignsAndInfinityHaveOtherBits) {
  const double most = std::numeric_limits<double>::max();
  const double values[] = {0.0, -0.0, most, INFINITY, -most, -INFINITY};
  for (const double& a : values) {
    for (const double& b : values) {
      const auto found = differences(step_with(at::tensor({a}), at::ones({1})),
                                     step_with(at::tensor({b}), at::ones({1})));
      EXPECT_EQ(found.outputs.equal_bits, &a == &b) << a << " " << b;
    }
  }
  const auto zero = [](double value) {
    return step_with(at::ones({1}), at::tensor({value, 4.0}));
  };
  EXPECT_EQ(text_of(differences(zero(0.0), zero(-0.0)).grads, "gradients"),
            "1 gradients differ by up to 0.0e+00 of the largest element (w)");
}

TEST(ComparisonTest, ADifferenceIsRelativeToTheLargestElement) {
  const StepDifference found =
      differences(step_with(at::tensor({1.0, 2.0}), at::tensor({3.0, -8.0})),
                  step_with(at::tensor({1.0, 2.0}), at::tensor({4.0, -8.0})));
  EXPECT_TRUE(found.outputs.equal_bits);
  EXPECT_FALSE(found.grads.equal_bits);
  EXPECT_EQ(found.grads.largest, 0.125);
  EXPECT_EQ(text_of(found.grads, "gradients"),
            "1 gradients differ by up to 1.2e-01 of the largest element (w)");
}

TEST(ComparisonTest, NaNIsTheLargestDifference) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExportedStep expected = step_with(at::zeros({1}), at::tensor({1.0}));
  ExportedStep step = step_with(at::zeros({1}), at::tensor({nan}));
  expected.grads.insert("x", at::tensor({2.0}));
  step.grads.insert("x", at::tensor({2.5}));
  const Difference grads = differences(step, expected).grads;
  EXPECT_TRUE(std::isnan(grads.largest));
  EXPECT_EQ(grads.where, "w");
}

TEST(ComparisonTest, OutputsInEvalModeAreComparedOnTheirOwn) {
  StateDict tensors;
  for (const char* each : {"input.0", "output.0", "weight.0"}) {
    tensors.insert(each, at::ones({2}));
  }
  tensors.insert("eval.0", at::tensor({4.0, 2.0}));
  const ExportedStep expected = reference_of(tensors).step;
  ExportedStep step = expected;
  step.evaluated = {at::tensor({4.0, 3.0})};
  const StepDifference found = differences(step, expected);
  EXPECT_TRUE(found.outputs.equal_bits);
  EXPECT_EQ(found.evaluated.largest, 0.25);
  step.evaluated.clear();
  EXPECT_EQ(value_error_of([&] { (void)differences(step, expected); }),
            "there are 0 outputs in eval(), but 1 are expected");
}

TEST(ComparisonTest, MissingTensorsAndOtherShapesAreNamed) {
  const ExportedStep step = step_with(at::zeros({2}), at::zeros({2}));
  ExportedStep other = step;
  other.grads.insert("v", at::zeros({1}));
  EXPECT_EQ(value_error_of([&] { (void)differences(step, other); }),
            "there is no gradient of v");
  EXPECT_EQ(value_error_of([&] { (void)differences(other, step); }),
            "the reference has no gradient of v; make it again with "
            "tools/export_examples.py");
  other = step;
  other.buffers.insert("b", at::zeros({1}));
  EXPECT_EQ(value_error_of([&] { (void)differences(other, step); }),
            "the reference has no buffer of b; make it again with "
            "tools/export_examples.py");
  other.optional = {"b"};
  EXPECT_EQ(differences(other, step).buffers.tensors, 0);
  EXPECT_EQ(value_error_of([&] {
              (void)differences(step, step_with(at::zeros({3}), at::zeros(2)));
            }),
            "output 0 is Float [2], but Float [3] is expected");
  StateDict tensors;
  EXPECT_NE(value_error_of([&] {
              (void)reference_of(tensors);
            }).find("has no tensor input.0"),
            std::string::npos);
}

TEST(ComparisonTest, TensorsOfAnyTypeAreCompared) {
  const at::Tensor values = at::tensor({1.0, -2.0, 0.5, 4.0}).view({2, 2});
  const auto difference_of = [](const at::Tensor& found,
                                const at::Tensor& expected) {
    return differences(step_with(at::zeros({1}), found),
                       step_with(at::zeros({1}), expected))
        .grads;
  };
  for (const at::ScalarType each :
       {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kHalf, at::kBFloat16,
        at::kLong, at::kComplexFloat}) {
    const at::Tensor typed = values.to(each);
    EXPECT_TRUE(difference_of(typed, typed.clone()).equal_bits) << each;
    EXPECT_EQ(difference_of(values.mul(2).to(each), typed).largest, 1) << each;
  }
  const at::Tensor conjugate = at::complex(values, values).conj();
  EXPECT_EQ(difference_of(conjugate, at::complex(values, values)).largest, 2);
  const at::Tensor large = at::tensor({int64_t{1} << 60});
  EXPECT_FALSE(difference_of(large + 1, large).equal_bits);
  EXPECT_TRUE(difference_of(values.to_sparse(), values).equal_bits);
  EXPECT_EQ(difference_of(values, values.mul(2).to_sparse()).largest, 0.5);
}

TEST(ComparisonTest, AReferenceMayHaveMicrobatches) {
  StateDict tensors;
  for (const char* each : {"input.0", "output.0", "weight.0"}) {
    tensors.insert(each, at::zeros({4, 2}));
  }
  EXPECT_EQ(reference_of(tensors).chunks, 0);
  tensors.insert("micro.count", at::scalar_tensor(2, at::kLong));
  EXPECT_EQ(value_error_of([&] { (void)reference_of(tensors); }),
            "has 0 tensors micro.output.i, but 1 tensors weight.i; each output "
            "needs a weight in the loss");
  tensors.insert("micro.output.0", at::ones({4, 2}));
  tensors.insert("micro.grad.w", at::ones({3}));
  tensors.insert("micro.buffer.b", at::ones({5}));
  const Reference reference = reference_of(tensors);
  EXPECT_EQ(reference.chunks, 2);
  EXPECT_EQ(reference.in_chunks.outputs.at(0).size(0), 4);
  EXPECT_EQ(reference.in_chunks.grads["w"].numel(), 3);
  EXPECT_EQ(reference.in_chunks.buffers["b"].numel(), 5);
  EXPECT_TRUE(reference.step.grads.is_empty());
  tensors["micro.count"].fill_(5);
  EXPECT_EQ(value_error_of([&] { (void)reference_of(tensors); }),
            "has micro.count 5 for 4 rows");
}

}  // namespace
}  // namespace gpipe::exported
