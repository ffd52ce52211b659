#include "training/non_finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <string>

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

torch::Tensor with(double number, torch::Dtype type = torch::kFloat) {
  torch::Tensor tensor = torch::zeros({3, 4}, type);
  tensor[2][1] = number;
  return tensor;
}

TEST(NonFiniteTest, NamesTensorsWithANanOrAnInfinity) {
  torch::OrderedDict<std::string, torch::Tensor> named;
  named.insert("fine", with(3.4e38));
  named.insert("nan", with(std::nan("")));
  named.insert("undefined", torch::Tensor());
  named.insert("empty", torch::empty({0}));
  named.insert("minus inf", with(-INFINITY));
  named.insert("integers", torch::full({2}, 7, torch::kLong));
  named.insert("half", with(INFINITY, torch::kHalf));
  named.insert("bfloat16", with(1e38, torch::kBFloat16));
  named.insert("complex", torch::complex(torch::zeros({2}),
                                         torch::full({2}, std::nan(""))));
  named.insert("sparse", with(INFINITY).to_sparse());
  named.insert("sparse, fine", with(1).to_sparse());
  named.insert("rows", with(NAN).view({2, -1}).to_sparse_csr());
  EXPECT_THAT(
      non_finite_names(named),
      ElementsAre("nan", "minus inf", "half", "complex", "sparse", "rows"));
}

TEST(NonFiniteTest, FindsNothingInNothing) {
  const torch::OrderedDict<std::string, torch::Tensor> nothing;
  EXPECT_THAT(non_finite_names(nothing), IsEmpty());
}

TEST(NonFiniteTest, LooksAtParametersOrAtTheirGradients) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  EXPECT_THAT(non_finite_gradients(model->named_parameters()), IsEmpty());
  model->parameters()[1].mutable_grad() = torch::tensor({1.0F, INFINITY});
  model->parameters()[2].mutable_grad() = torch::ones({2, 2});
  EXPECT_THAT(non_finite_gradients(model->named_parameters()),
              ElementsAre("0.bias"));
  EXPECT_THAT(non_finite_names(model->named_parameters()), IsEmpty());
  {
    const torch::NoGradGuard no_grad;
    model->parameters()[3].fill_(std::nan(""));
  }
  EXPECT_THAT(non_finite_names(model->named_parameters()),
              ElementsAre("1.bias"));
}

}  // namespace
}  // namespace gpipe
