#include "gpipe/runtime/autograd/non_finite.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

using testing::device;
using testing::error_of;

const double kNan = std::nan(""), kInf = INFINITY;

torch::Tensor tensor_of(std::vector<double> values) {
  return torch::tensor(values, torch::kDouble).to(device());
}

TEST(NonFiniteTest, CountsWhatIsNotFinite) {
  EXPECT_EQ(internal::non_finite_part(tensor_of({1, -1e308, 0})), std::nullopt);
  EXPECT_EQ(internal::non_finite_part(tensor_of({kNan, 1, kNan})),
            "2 of 3 elements are nan");
  EXPECT_EQ(internal::non_finite_part(tensor_of({kInf, 1, -kInf})),
            "2 of 3 elements are inf");
  EXPECT_EQ(internal::non_finite_part(tensor_of({kNan, 1, kInf, -kInf})),
            "1 of 4 elements are nan and 2 inf");
  EXPECT_EQ(internal::non_finite_part(tensor_of({kNan})),
            "1 of 1 element is nan");
}

TEST(NonFiniteTest, LooksAtNumbersThatCanBeOtherwiseOnly) {
  EXPECT_EQ(internal::non_finite_part(torch::Tensor()), std::nullopt);
  EXPECT_EQ(internal::non_finite_part(tensor_of({})), std::nullopt);
  EXPECT_EQ(internal::non_finite_part(torch::ones({2}, torch::kLong)),
            std::nullopt);
  EXPECT_EQ(internal::non_finite_part(torch::ones({2}, torch::kBool)),
            std::nullopt);
  EXPECT_EQ(internal::non_finite_part(torch::empty({2}, torch::kMeta)),
            std::nullopt);
  EXPECT_EQ(internal::non_finite_part(torch::full({2}, kInf, torch::kHalf)),
            "2 of 2 elements are inf");
}

TEST(NonFiniteTest, TellsWhichOfSeveralTensors) {
  internal::check_finite({tensor_of({1}), torch::Tensor()}, "the input");
  EXPECT_EQ(error_of([] {
              internal::check_finite({tensor_of({kNan})}, "the input");
            }),
            "gpipe::NonFiniteError: the input is not finite: 1 of 1 element is "
            "nan");
  EXPECT_EQ(error_of([] {
              internal::check_finite({tensor_of({1}), tensor_of({kInf, 2})},
                                     "the input");
            }),
            "gpipe::NonFiniteError: element 1 of the input is not finite: 1 of "
            "2 elements are inf");
}

TEST(NonFiniteTest, TellsOfAllGradientsUpToEight) {
  internal::NonFiniteGradients grads;
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
}  // namespace gpipe
