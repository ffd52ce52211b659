#include "models/weights/safetensors_folder.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"

namespace gpipe::internal {
namespace {

using gpipe::testing::bit_equal;
using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;

const std::unordered_set<std::string> kProgram = {
    "layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj",
    "layers.0.mlp.gate.weight"};

// Returns the weights of 2 experts of width 3 and inner width 2. `names`: of
// gate, up and down.
StateDict experts(const std::string& block,
                  const std::vector<std::string>& names) {
  StateDict dict;
  dict.insert(block + ".gate.weight", at::arange(6, at::kFloat).view({2, 3}));
  for (int k = 0; k < 2; ++k) {
    for (std::size_t each = 0; each < 3; ++each) {
      const double start = 100 * (k + 1) + 10.0 * static_cast<double>(each);
      const at::Tensor values = at::arange(start, start + 6, at::kFloat);
      dict.insert(block + ".experts." + std::to_string(k) + "." + names[each] +
                      ".weight",
                  each == 2 ? values.view({3, 2}) : values.view({2, 3}));
    }
  }
  return dict;
}

StateDict mixtral() {
  return experts("layers.0.block_sparse_moe", {"w1", "w3", "w2"});
}

SafetensorsFolder folder_with(const StateDict& dict) {
  const std::string folder = new_folder();
  write_safetensors(folder + "model.safetensors", dict);
  return SafetensorsFolder(folder);
}

at::Tensor value_of(const FolderWeight& weight) {
  at::Tensor tensor = at::empty(weight.sizes, at::TensorOptions(weight.dtype));
  weight.read(tensor.mutable_data_ptr());
  return tensor;
}

TEST(FolderWeightsTest, ExpertsAreStackedAsTheProgramHasThem) {
  for (const StateDict& dict :
       {mixtral(),
        experts("layers.0.mlp", {"gate_proj", "up_proj", "down_proj"})}) {
    const SafetensorsFolder folder = folder_with(dict);
    const auto weights = folder_weights(folder, kProgram);
    ASSERT_EQ(weights.size(), 3u);
    const auto row = [](double start) {
      return at::arange(start, start + 6, at::kFloat);
    };
    EXPECT_TRUE(bit_equal(
        value_of(weights.at("layers.0.mlp.experts.gate_up_proj")),
        at::cat({row(100), row(110), row(200), row(210)}).view({2, 4, 3})));
    EXPECT_TRUE(
        bit_equal(value_of(weights.at("layers.0.mlp.experts.down_proj")),
                  at::cat({row(120), row(220)}).view({2, 3, 2})));
    EXPECT_TRUE(bit_equal(value_of(weights.at("layers.0.mlp.gate.weight")),
                          row(0).view({2, 3})));
  }
}

TEST(FolderWeightsTest, AProgramWithoutStackedExpertsHasTheNamesOfTheFolder) {
  const SafetensorsFolder folder = folder_with(mixtral());
  const auto weights = folder_weights(folder, {"layers.0.mlp.weight"});
  EXPECT_EQ(weights.size(), 7u);
  EXPECT_EQ(weights.count("layers.0.block_sparse_moe.experts.1.w3.weight"), 1u);
}

TEST(FolderWeightsTest, NamesWhatIsWrongWithAnExpert) {
  const auto error_with = [](const StateDict& dict) {
    const SafetensorsFolder folder = folder_with(dict);
    return value_error_of([&] { folder_weights(folder, kProgram); });
  };
  const std::string block = "layers.0.block_sparse_moe.experts.";
  for (const char* missing : {"0.w1", "1.w3", "0.w2"}) {
    StateDict dict;
    for (const auto& item : mixtral()) {
      if (item.key() != block + missing + ".weight") {
        dict.insert(item.key(), item.value());
      }
    }
    EXPECT_NE(error_with(dict).find("lacks a tensor"), std::string::npos)
        << missing;
  }
  StateDict dict = mixtral();
  dict[block + "1.w3.weight"] = at::ones({3, 3});
  EXPECT_NE(error_with(dict).find(
                "'" + block + "1.w3.weight' is Float of shape [3, 3], but '" +
                block + "0.w1.weight' is Float of shape [2, 3]"),
            std::string::npos)
      << error_with(dict);
  dict = mixtral();
  dict.insert("layers.0.mlp.experts.down_proj", at::ones({2, 3, 2}));
  EXPECT_NE(error_with(dict).find("'layers.0.mlp.experts.down_proj' is there "
                                  "twice"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::internal
