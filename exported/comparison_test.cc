#include "exported/comparison.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <limits>

#include "weights/testing/files.h"

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

TEST(ComparisonTest, MissingTensorsAndOtherShapesAreNamed) {
  const ExportedStep step = step_with(at::zeros({2}), at::zeros({2}));
  ExportedStep other = step;
  other.grads.insert("v", at::zeros({1}));
  EXPECT_EQ(value_error_of([&] { (void)differences(step, other); }),
            "there is no gradient of v");
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

}  // namespace
}  // namespace gpipe::exported
