// Folders of PEFT that do not fit or are damaged.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "models/lora.h"
#include "models/testing/files.h"
#include "models/weights/safetensors.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using testing::value_error_of;

constexpr char kAdapter[] = "models/exported/testdata/lora/llama_adapter/";
constexpr char kProgram[] = "models/exported/testdata/lora/llama.pt2";
constexpr char kTensors[] = "adapter_model.safetensors";
constexpr char kConfig[] = "adapter_config.json";

// Returns a copy of the adapter with other tensors and another configuration.
std::string folder_with(const std::function<void(StateDict&)>& change,
                        const std::string& from = "",
                        const std::string& to = "") {
  const std::string folder = testing::new_folder();
  std::string config = testing::read_bytes(std::string(kAdapter) + kConfig);
  if (!from.empty()) config.replace(config.find(from), from.size(), to);
  testing::write_bytes(folder + kConfig, config);
  StateDict tensors =
      read_safetensors(std::string(kAdapter) + kTensors).tensors;
  change(tensors);
  write_safetensors(folder + kTensors, tensors);
  return folder;
}

// Returns the error of loading a folder, and checks that nothing has changed.
std::string error_of_loading(const std::string& folder) {
  ExportedModel model =
      add_lora(load_exported(kProgram), read_lora_options(kAdapter));
  load_lora(kAdapter, *model.layers);
  const std::string error =
      value_error_of([&] { load_lora(folder, *model.layers); });
  testing::expect_equal(
      testing::sorted(lora_state_dict(*model.layers)),
      read_safetensors(std::string(kAdapter) + kTensors).tensors);
  return error;
}

TEST(LoraFiles, AnotherRankIsRefused) {
  const std::string folder =
      folder_with([](StateDict&) {}, "\"r\": 4", "\"r\": 8");
  EXPECT_EQ(error_of_loading(folder),
            "'" + folder +
                "adapter_config.json' has adapters of rank 8 and scale 0.75, "
                "but that of the module 'model.layers.0.self_attn.q_proj' has "
                "rank 4 and scale 1.5");
}

TEST(LoraFiles, CopiesOfBaseWeightsAreIgnored) {
  const std::string folder = folder_with([](StateDict& tensors) {
    tensors.insert("base_model.model.lm_head.base_layer.weight",
                   at::zeros({13, 16}));
    tensors.insert("base_model.model.lm_head.base_layer.bias", at::zeros({13}));
  });
  EXPECT_EQ(error_of_loading(folder), "no error");
  StateDict weights = load_exported(kProgram).state_dict();
  EXPECT_EQ(value_error_of([&] { merge_lora(folder, weights); }), "no error");
}

TEST(LoraFiles, TensorsThatDoNotFitAreRefusedAtOnce) {
  const std::string name =
      "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const std::string folder = folder_with([&](StateDict& tensors) {
    StateDict changed;
    for (const auto& each : tensors) {
      if (each.key() == name) {
        changed.insert(name, at::zeros({8, 16}));
      } else if (each.key().find("1.mlp.down_proj.lora_B") ==
                 std::string::npos) {
        changed.insert(each.key(), each.value());
      }
    }
    // Both are adapters, also that of a module with the name base_layer.
    changed.insert("base_model.model.other.lora_A.weight", at::zeros({4, 16}));
    changed.insert("base_model.model.base_layer.0.lora_A.weight",
                   at::zeros({4, 16}));
    tensors = changed;
  });
  const std::string error = error_of_loading(folder);
  for (const std::string& part :
       {folder + kTensors, name, std::string("[8, 16]"),
        std::string("layers.1.mlp.down_proj.lora_B.weight"),
        std::string("other.lora_A.weight"),
        std::string("base_layer.0.lora_A.weight")}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
  }
}

TEST(LoraFiles, DamagedAndMissingFilesAreRefused) {
  const std::string folder = folder_with([](StateDict&) {});
  const std::string tensors = testing::read_bytes(folder + kTensors);
  testing::write_bytes(folder + kTensors, tensors.substr(0, 900));
  EXPECT_NE(error_of_loading(folder).find(kTensors), std::string::npos);
  testing::write_bytes(folder + kConfig, "{");
  EXPECT_NE(error_of_loading(folder).find("is not JSON"), std::string::npos);
  EXPECT_EQ(error_of_loading("/nowhere"),
            "'/nowhere/adapter_config.json' cannot be read; a folder of PEFT "
            "has this file and adapter_model.safetensors");
}

TEST(LoraFiles, AModuleWithoutAdaptersIsRefused) {
  ExportedModel model = load_exported(kProgram);
  EXPECT_EQ(value_error_of([&] { load_lora(kAdapter, *model.layers); }),
            "the module has no adapters; call add_lora() with "
            "read_lora_options('models/exported/testdata/lora/llama_adapter/') "
            "first");
  EXPECT_EQ(value_error_of([&] {
              save_lora(testing::new_folder(), *model.layers, LoraOptions());
            }),
            "there are no adapters to save; call add_lora() first");
}

TEST(LoraFiles, WeightsThatDoNotFitAreNotMerged) {
  const StateDict before = load_exported(kProgram).state_dict();
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  StateDict without, other;
  for (const auto& each : before) {
    if (each.key() != name) without.insert(each.key(), each.value());
    other.insert(each.key(),
                 each.key() == name ? at::zeros({16, 8}) : each.value());
  }
  const std::string path = std::string(kAdapter) + kTensors;
  EXPECT_EQ(value_error_of([&] { merge_lora(kAdapter, without); }),
            "'" + path +
                "' has an adapter of the module "
                "'model.layers.1.self_attn.q_proj', but there is no weight "
                "'model.layers.1.self_attn.q_proj.weight'");
  EXPECT_EQ(value_error_of([&] { merge_lora(kAdapter, other); }),
            "'" + path +
                "' has an adapter of rank 4 for "
                "'model.layers.1.self_attn.q_proj' with the sizes [4, 16] and "
                "[16, 4], but the weight has [16, 8]");
  for (const auto& each : without) {
    EXPECT_TRUE(each.value().equal(before[each.key()])) << each.key();
  }
}

// The weights of GPT-2 on the hub have no "transformer.", its adapters have it.
TEST(LoraFiles, NamesOfWeightsMayLackAPrefixOrHaveOneMore) {
  const StateDict before = load_exported(kProgram).state_dict();
  StateDict expected = before;
  merge_lora(kAdapter, expected);
  for (const bool has_more : {false, true}) {
    const auto name_of = [&](const std::string& name) {
      if (has_more) return "language_model." + name;
      return name.starts_with("model.") ? name.substr(6) : name;
    };
    StateDict weights;
    for (const auto& item : before) {
      weights.insert(name_of(item.key()), item.value());
    }
    merge_lora(kAdapter, weights);
    for (const auto& item : expected) {
      EXPECT_TRUE(weights[name_of(item.key())].equal(item.value()))
          << name_of(item.key());
    }
  }
}

// Adds an adapter of rank 1 and scale 2 whose product has one 1, in row 1 and
// column 0, to a weight of zeros.
at::Tensor merged_square(StateDict weights, bool fan_in_fan_out) {
  const std::string folder = testing::new_folder();
  StateDict adapter;
  const std::string name = "base_model.model.h.0.attn.c_proj.lora_";
  adapter.insert(name + "A.weight", at::tensor({1.f, 0.f}).view({1, 2}));
  adapter.insert(name + "B.weight", at::tensor({0.f, 1.f}).view({2, 1}));
  save_lora(folder, adapter, LoraOptions().rank(1).alpha(2).targets({"c_proj"}),
            fan_in_fan_out);
  weights.insert("h.0.attn.c_proj.weight", at::zeros({2, 2}));
  merge_lora(folder, weights);
  return weights["h.0.attn.c_proj.weight"];
}

// PEFT writes fan_in_fan_out for its last module, such as GPT-2's lm_head.
TEST(LoraFiles, ASquareWeightIsMergedInTheDirectionOfOthersOfItsName) {
  const at::Tensor plain = at::tensor({0.f, 0.f, 2.f, 0.f}).view({2, 2});
  StateDict conv, linear;
  conv.insert("h.0.mlp.c_proj.weight", at::zeros({8, 2}));
  conv.insert("h.0.mlp.c_proj.bias", at::zeros({2}));
  linear.insert("h.0.mlp.c_proj.weight", at::zeros({2, 8}));
  linear.insert("h.0.mlp.c_proj.bias", at::zeros({2}));
  for (const bool config : {false, true}) {
    EXPECT_TRUE(merged_square(conv, config).equal(plain.t())) << config;
    EXPECT_TRUE(merged_square(linear, config).equal(plain)) << config;
    EXPECT_TRUE(
        merged_square(StateDict(), config).equal(config ? plain.t() : plain));
  }
}

// As PEFT does, which loads them as float32.
TEST(LoraFiles, AdaptersOf16BitsAreMultipliedInFloat32) {
  const std::string folder = testing::new_folder();
  const at::Tensor a = at::linspace(1, 2, 8).view({2, 4}).to(at::kBFloat16);
  const at::Tensor b = at::linspace(3, 4, 6).view({3, 2}).to(at::kBFloat16);
  StateDict adapter, weights;
  adapter.insert("base_model.model.up.lora_A.weight", a);
  adapter.insert("base_model.model.up.lora_B.weight", b);
  save_lora(folder, adapter, LoraOptions().rank(2).alpha(2).targets({"up"}));
  weights.insert("up.weight", at::zeros({3, 4}));
  merge_lora(folder, weights);
  EXPECT_TRUE(weights["up.weight"].equal(
      at::matmul(b.to(at::kFloat), a.to(at::kFloat))));
}

TEST(LoraFiles, AFolderHasOptionsAndMatricesOfOneSave) {
  const std::string folder = testing::new_folder();
  const auto save = [&](double alpha, float value) {
    StateDict adapter;
    const std::string name = "base_model.model.up.lora_";
    adapter.insert(name + "A.weight", at::full({1, 2}, value));
    adapter.insert(name + "B.weight", at::full({2, 1}, value));
    // The long target makes the options the larger file.
    save_lora(folder, adapter,
              LoraOptions().rank(1).alpha(alpha).targets(
                  {"up", std::string(1000, 'x')}));
  };
  save(2, 1);
  save(4, 3);
  const auto bytes_of = [&](const char* name) {
    return testing::read_bytes(folder + name);
  };
  const std::string config = bytes_of(kConfig), tensors = bytes_of(kTensors);
  EXPECT_EQ(read_lora_options(folder).alpha(), 4);
  // The disk is full after the matrices.
  testing::with_file_limit(tensors.size(), [&] {
    EXPECT_THAT(testing::error_of([&] { save(8, 5); }), HasSubstr(kConfig));
  });
  EXPECT_TRUE(bytes_of(kConfig) == config);
  EXPECT_TRUE(bytes_of(kTensors) == tensors);
  EXPECT_EQ(testing::names_in(folder),
            (std::vector<std::string>{kConfig, kTensors}));
}

TEST(LoraFiles, OptionsOfAnotherAdapterAreNotSaved) {
  const ExportedModel model =
      add_lora(load_exported(kProgram), read_lora_options(kAdapter));
  const std::string folder = testing::new_folder();
  EXPECT_EQ(value_error_of([&] {
              save_lora(folder, *model.layers,
                        read_lora_options(kAdapter).alpha(8));
            }),
            "LoraOptions has adapters of rank 4 and scale 2, but that of the "
            "module 'model.layers.0.self_attn.q_proj' has rank 4 and scale "
            "1.5");
  const auto error = [&](const StateDict& adapters,
                         const LoraOptions& options) {
    return value_error_of([&] { save_lora(folder, adapters, options); });
  };
  const StateDict adapters = lora_state_dict(*model.layers);
  const LoraOptions good = read_lora_options(kAdapter);
  EXPECT_THAT(error(adapters, LoraOptions(good).rank(8)),
              HasSubstr("but LoraOptions has adapters of rank 8"));
  EXPECT_THAT(error(adapters, LoraOptions(good).targets({"other"})),
              HasSubstr("no target of LoraOptions fits (other)"));
  EXPECT_THAT(error(adapters, LoraOptions(good).alpha(NAN)),
              HasSubstr("alpha is nan"));
  std::vector<std::string> targets = good.targets();
  targets.push_back("\xff");
  EXPECT_THAT(error(adapters, LoraOptions(good).targets(targets)),
              HasSubstr("a target is not UTF-8"));
  EXPECT_TRUE(testing::names_in(folder).empty());
}

}  // namespace
}  // namespace gpipe
