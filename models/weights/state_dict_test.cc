#include "models/weights/state_dict.h"

#include <ATen/Functions.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/testing/files.h"

namespace gpipe {
namespace {

using testing::value_error_of;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::LinearOptions;
using torch::nn::Sequential;
using Names = std::vector<std::string>;

// A module whose registration order differs from the order of a state dict.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    fc = register_module("fc", Linear(LinearOptions(2, 1).bias(false)));
    buffer = register_buffer("buffer", at::full({1}, 5.0));
    again = register_module("again", fc);
    scale = register_parameter("scale", at::full({}, 2.0));
    register_parameter("none", at::Tensor(), /*requires_grad=*/false);
    register_buffer("no buffer", at::Tensor());
  }
  Linear fc{nullptr}, again{nullptr};
  at::Tensor buffer, scale;
};

Sequential small_model() {
  return Sequential(Linear(2, 3), BatchNorm1d(3), Linear(3, 1));
}

TEST(StateDictTest, HasPythonsOrder) {
  EXPECT_EQ(state_dict(MixedImpl()).keys(),
            (Names{"scale", "buffer", "fc.weight", "again.weight"}));
  EXPECT_EQ(
      state_dict(*small_model()).keys(),
      (Names{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
             "1.running_var", "1.num_batches_tracked", "2.weight", "2.bias"}));
}

TEST(StateDictTest, SharesMemoryAndIsDetached) {
  Linear layer(2, 1);
  const StateDict dict = state_dict(*layer);
  EXPECT_FALSE(dict["weight"].requires_grad());
  EXPECT_EQ(dict["weight"].const_data_ptr(), layer->weight.const_data_ptr());
}

TEST(LoadStateDictTest, CopiesInPlace) {
  Sequential from = small_model();
  Sequential to = small_model();
  from->children()[1]->as<torch::nn::BatchNorm1d>()->num_batches_tracked.fill_(
      7);
  const at::Tensor watched = to->children()[0]->as<Linear>()->weight;
  const LoadReport report = load_state_dict(*to, state_dict(*from));
  EXPECT_TRUE(report.missing.empty());
  EXPECT_TRUE(report.unexpected.empty());
  const StateDict a = state_dict(*from);
  const StateDict b = state_dict(*to);
  testing::expect_equal(a, b);
  EXPECT_TRUE(watched.equal(a["0.weight"]));
  EXPECT_TRUE(watched.requires_grad());
  EXPECT_EQ(b["1.num_batches_tracked"].item<int64_t>(), 7);
}

TEST(LoadStateDictTest, ConvertsBetweenFloatingPointDtypesOnly) {
  Linear layer(LinearOptions(2, 1).bias(false));
  StateDict dict;
  dict.insert("weight", at::full({1, 2}, 0.1, at::TensorOptions(at::kDouble)));
  load_state_dict(*layer, dict);
  EXPECT_EQ(layer->weight[0][1].item<float>(), 0.1f);
  EXPECT_EQ(layer->weight.scalar_type(), at::kFloat);

  StateDict integers;
  integers.insert("weight", at::full({1, 2}, 1, at::TensorOptions(at::kLong)));
  EXPECT_EQ(value_error_of([&] { load_state_dict(*layer, integers); }),
            "the state dict does not fit the module; nothing was loaded.\n"
            "1 of another shape or kind:\n"
            "  'weight' is Long in the dict, but Float in the module");
}

TEST(ConvertInRangeTest, RefusesFiniteValuesThatWouldNotStayFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor fits =
      at::tensor({65504.0, -1.5, infinity, std::nan("")}, at::kFloat);
  const at::Tensor half = internal::convert_in_range("a", fits, at::kHalf);
  EXPECT_EQ(half.scalar_type(), at::kHalf);
  EXPECT_TRUE(at::allclose(half.to(at::kFloat), fits, 0, 0, true));
  const auto error = [](const at::Tensor& tensor, at::ScalarType dtype) {
    return value_error_of(
        [&] { internal::convert_in_range("layer.weight", tensor, dtype); });
  };
  const at::Tensor large = at::tensor({70000.0, -1e9, 1.0, infinity});
  EXPECT_EQ(error(large, at::kHalf),
            "'layer.weight': 2 of 4 elements are beyond the range of Half, and "
            "would become infinite, NaN or another number; take a dtype with a "
            "larger range, such as bfloat16 or float32, or change these values "
            "first");
  EXPECT_EQ(error(large, at::kBFloat16), "no error");
  EXPECT_NE(error(at::tensor({1e39}, at::kDouble), at::kFloat), "no error");
  EXPECT_NE(error(at::tensor({1e6}), at::kFloat8_e5m2), "no error");
  EXPECT_EQ(error(at::tensor({448.0}), at::kFloat8_e5m2), "no error");
  EXPECT_EQ(error(at::tensor({463.0}), at::kFloat8_e4m3fn), "no error");
  const at::Tensor exponents = at::tensor({1e38}).to(at::kFloat8_e8m0fnu);
  EXPECT_NE(error(exponents, at::kHalf), "no error");
  EXPECT_EQ(error(exponents, at::kFloat), "no error");
  EXPECT_NE(error(at::tensor({500.0}), at::kFloat8_e4m3fn), "no error");
  EXPECT_EQ(error(at::empty({0}), at::kHalf), "no error");
  // A dtype of powers of two has neither signs nor zero.
  EXPECT_EQ(error(at::tensor({0.5, 6.0}), at::kFloat8_e8m0fnu), "no error");
  for (const double value : {-1.0, 0.0}) {
    EXPECT_NE(error(at::tensor({value}), at::kFloat8_e8m0fnu), "no error");
  }
}

TEST(LoadStateDictTest, RefusesValuesBeyondTheRangeOfTheModule) {
  Linear layer(LinearOptions(2, 1).bias(false));
  layer->to(at::kHalf);
  const at::Tensor before = layer->weight.detach().clone();
  StateDict dict;
  dict.insert("weight", at::tensor({0.5f, 70000.0f}).view({1, 2}));
  EXPECT_EQ(value_error_of([&] { load_state_dict(*layer, dict); }),
            "the state dict does not fit the module; nothing was loaded.\n"
            "1 of another shape or kind:\n"
            "  'weight' has 1 of 2 elements beyond the range of Half, the "
            "dtype in the module");
  EXPECT_TRUE(layer->weight.equal(before));
}

TEST(LoadStateDictTest, ListsAllThatIsWrongAndChangesNothing) {
  Sequential model = small_model();
  const StateDict before = testing::copy_of(state_dict(*model));
  StateDict dict;
  dict.insert("0.weight", at::full({3, 2}, 9.0));  // fits
  dict.insert("0.bias", at::full({4}, 9.0));
  dict.insert("1.weigth", at::full({3}, 9.0));
  dict.insert("module.1.bias", at::full({3}, 9.0));
  dict.insert("1.running_mean", at::Tensor());
  dict.insert("1.running_var", at::empty({3}, at::TensorOptions(at::kMeta)));
  dict.insert("1.num_batches_tracked", at::full({}, 9.0));
  dict.insert("2.weight", at::full({3, 1}, 9.0));
  dict.insert("optimizer.momentum_buffer", at::full({3, 1}, 9.0));
  EXPECT_EQ(
      value_error_of([&] { load_state_dict(*model, dict); }),
      "the state dict does not fit the module; nothing was loaded.\n"
      "5 of another shape or kind:\n"
      "  '0.bias' is [4] in the dict, but [3] in the module\n"
      "  '1.running_mean' is undefined in the dict\n"
      "  '1.running_var' is on the meta device in the dict, and so has no "
      "values\n"
      "  '1.num_batches_tracked' is Float in the dict, but Long in the "
      "module\n"
      "  '2.weight' is [3, 1] in the dict, but [1, 3] in the module\n"
      "  (LoadOptions().skip_mismatched(true) leaves out other shapes; "
      "HuggingFaceOptions().skip() and --weights_skip leave out tensors by "
      "name)\n"
      "3 missing (in the module, not in the dict):\n"
      "  '1.weight'\n"
      "  '1.bias'\n"
      "  '2.bias'\n"
      "3 unexpected (in the dict, not in the module):\n"
      "  '1.weigth' (is it '1.weight'?)\n"
      "  'module.1.bias' (is it '1.bias'?)\n"
      "  'optimizer.momentum_buffer'");
  testing::expect_equal(state_dict(*model), before);
}

TEST(LoadStateDictTest, CutsLongLists) {
  Linear layer(2, 1);
  StateDict dict = state_dict(*layer);
  for (int k = 0; k < 23; ++k) {
    dict.insert("some.other.name." + std::to_string(k), at::full({1}, 0.0));
  }
  const std::string error =
      value_error_of([&] { load_state_dict(*layer, dict); });
  EXPECT_NE(error.find("\n23 unexpected"), std::string::npos);
  EXPECT_NE(error.find("'some.other.name.19'\n  and 3 more"),
            std::string::npos);
  EXPECT_EQ(error.find("'some.other.name.20'"), std::string::npos);
}

TEST(LoadStateDictTest, WithoutStrictNamesMayDifferButNotShapes) {
  Linear layer(2, 1);
  StateDict dict;
  dict.insert("weight", at::full({1, 2}, 3.0));
  dict.insert("more", at::full({1}, 3.0));
  const at::Tensor bias = layer->bias.detach().clone();
  const LoadReport report =
      load_state_dict(*layer, dict, LoadOptions().strict(false));
  EXPECT_EQ(report.missing, Names{"bias"});
  EXPECT_EQ(report.unexpected, Names{"more"});
  EXPECT_TRUE(layer->weight.equal(at::full({1, 2}, 3.0)));
  EXPECT_TRUE(layer->bias.equal(bias));

  dict["weight"] = at::full({2, 2}, 3.0);
  EXPECT_NE(value_error_of([&] {
              load_state_dict(*layer, dict, LoadOptions().strict(false));
            }).find("'weight' is [2, 2] in the dict, but [1, 2] in the module"),
            std::string::npos);
}

TEST(LoadStateDictTest, TensorsThatNobodyCanWriteAreAnError) {
  torch::nn::Module module;
  module.register_parameter("first", at::zeros({2}));
  module.register_buffer("expanded", at::zeros({1}).expand({3}));
  module.register_parameter("meta",
                            at::empty({2}, at::TensorOptions(at::kMeta)));
  StateDict dict;
  for (const auto& item : state_dict(module)) {
    dict.insert(item.key(), at::ones(item.value().sizes()));
  }
  EXPECT_EQ(value_error_of([&] { load_state_dict(module, dict); }),
            "the state dict does not fit the module; nothing was loaded.\n"
            "2 of another shape or kind:\n"
            "  'meta' is on the meta device in the module, and so has no "
            "memory for values\n"
            "  'expanded' is expanded in the module: several of its elements "
            "share memory, and cannot be written; register a clone() of it");
  EXPECT_EQ(module.parameters()[0].sum().item<float>(), 0);

  // From the meta device to the meta device there are no values to lose.
  StateDict own = state_dict(module);
  own.erase("expanded");
  dict.erase("expanded");
  EXPECT_EQ(check_state_dict(own, dict).missing, Names());
  own.erase("first");
  EXPECT_EQ(load_state_dict(own, StateDict(own)).missing, Names());
}

StateDict one(const at::Tensor& tensor) {
  StateDict dict;
  dict.insert("x", tensor);
  return dict;
}

TEST(LoadStateDictTest, CopiesSparseAndQuantizedTensors) {
  const at::Tensor values = at::arange(9, at::kFloat).view({3, 3}) / 8;
  const std::vector<std::pair<at::Tensor, at::Tensor>> cases = {
      {values.to_sparse(), at::eye(3).to_sparse()},
      {values.to_sparse(1), at::eye(3).to_sparse(1)},
      {values.to_sparse_csr(), (values + values).to_sparse_csr()},
      {at::quantize_per_tensor(values, 0.125, 0, at::kQInt8),
       at::quantize_per_tensor(values, 0.5, 1, at::kQInt8)}};
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.is_quantized() ? tensor.dequantize() : tensor.to_dense();
  };
  for (const auto& [from, to] : cases) {
    torch::nn::Module module("module");
    module.register_buffer("x", to.clone());
    const StateDict dict = one(from);
    load_state_dict(module, dict);
    EXPECT_TRUE(at::equal(plain(module.buffers()[0]), values));
    if (to.is_sparse_csr()) continue;
    EXPECT_NE(value_error_of([&] {
                load_state_dict(state_dict(module), dict);
              }).find("which a tensor that shares its memory cannot change"),
              std::string::npos);
  }
}

TEST(LoadStateDictTest, AnotherLayoutIsAMisfit) {
  const auto expect = [](const at::Tensor& from, const at::Tensor& to,
                         const std::string& text) {
    torch::nn::Module module("module");
    const at::Tensor kept = module.register_buffer("x", to);
    EXPECT_NE(value_error_of([&] {
                load_state_dict(module, one(from));
              }).find("'x' " + text),
              std::string::npos);
    EXPECT_TRUE(at::equal(kept.to_dense(), at::eye(3)));
  };
  const at::Tensor eye = at::eye(3), full = at::ones({3, 3});
  expect(full, eye.to_sparse(), "is Strided in the dict, but Sparse");
  expect(full.to_sparse(), eye, "is Sparse in the dict, but Strided");
  expect(full.to_sparse_csr(), eye.to_sparse_csr(),
         "has values [9] in the dict, but [3] in the module");
}

TEST(LoadStateDictTest, CopiesEveryDtypeThatFilesHave) {
  const StateDict dict = testing::every_kind_of_tensor(false);
  torch::nn::Module module;
  StateDict given;
  for (const auto& item : dict) {
    std::string name = item.key();
    std::replace(name.begin(), name.end(), '.', '_');
    module.register_buffer(name, at::zeros_like(item.value()));
    given.insert(name, item.value());
  }
  load_state_dict(module, given);
  testing::expect_equal(state_dict(module), given);
}

TEST(LoadStateDictTest, NoCommonNameIsAnErrorAlsoWithoutStrict) {
  Linear layer(2, 1);
  const auto error = [&layer](const StateDict& dict) {
    return value_error_of(
        [&] { load_state_dict(*layer, dict, LoadOptions().strict(false)); });
  };
  StateDict dict;
  EXPECT_THAT(error(dict),
              ::testing::HasSubstr("the state dict has none of the module's 2 "
                                   "tensors; nothing was loaded"));
  dict.insert("rng_state", at::full({1}, 0.0));
  dict.insert("module.weight", at::full({1, 2}, 3.0));
  EXPECT_THAT(error(dict),
              ::testing::HasSubstr("'module.weight' (is it 'weight'?)"));
  // A module without tensors, such as a partition of activations.
  EXPECT_EQ(load_state_dict(*Sequential(torch::nn::ReLU()), dict,
                            LoadOptions().strict(false))
                .unexpected.size(),
            2u);
}

TEST(LoadStateDictTest, LeavesOutOtherShapesIfAskedTo) {
  // A head for 3 classes gets the weights of one for 1.
  Sequential from = small_model();
  Sequential to(Linear(2, 3), BatchNorm1d(3), Linear(3, 3));
  const StateDict before = testing::copy_of(state_dict(*to));
  EXPECT_THAT(value_error_of([&] { load_state_dict(*to, state_dict(*from)); }),
              ::testing::HasSubstr("LoadOptions().skip_mismatched(true)"));
  const LoadReport report = load_state_dict(
      *to, state_dict(*from), LoadOptions().skip_mismatched(true));
  EXPECT_EQ(report.mismatched, (Names{"2.weight", "2.bias"}));
  EXPECT_EQ(report.missing, Names());
  EXPECT_EQ(report.unexpected, Names());
  const StateDict now = state_dict(*to), source = state_dict(*from);
  for (const auto& item : now) {
    const StateDict& expected = item.key()[0] == '2' ? before : source;
    EXPECT_TRUE(item.value().equal(expected[item.key()])) << item.key();
  }
}

TEST(LoadStateDictTest, LeavesOutShapesButNoOtherMisfits) {
  Sequential model = small_model();
  StateDict dict = testing::copy_of(state_dict(*model));
  dict["2.weight"] = at::empty({7});
  dict["0.weight"] = at::Tensor();
  dict.erase("0.bias");
  const std::string error = value_error_of([&] {
    load_state_dict(*model, dict, LoadOptions().skip_mismatched(true));
  });
  EXPECT_THAT(error, ::testing::HasSubstr("'0.weight' is undefined"));
  EXPECT_THAT(error, ::testing::HasSubstr("'0.bias'"));
  EXPECT_THAT(error, ::testing::Not(::testing::HasSubstr("'2.weight'")));
}

}  // namespace
}  // namespace gpipe
