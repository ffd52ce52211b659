#include "training/program/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "models/lora.h"
#include "models/resnet.h"
#include "models/resnet_names.h"
#include "models/testing/files.h"
#include "models/unet.h"
#include "models/weights/hugging_face.h"
#include "models/weights/names.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"
#include "training/program/run.h"
#include "training/program/task.h"
#include "training/testing/run_states.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::bit_equal;
using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using ::testing::HasSubstr;

// ---- Initial weights

std::unique_ptr<ModelSource> source(const std::string& model) {
  return std::make_unique<ModelSource>(model);
}

torch::nn::Sequential small(int seed) {
  torch::manual_seed(seed);
  return models::unet(1, 1, 2);
}

TEST(InitialWeightsTest, AreThoseOfTheFile) {
  const std::string folder = new_folder();
  const auto from = small(1);
  write_safetensors(folder + "w.safetensors", state_dict(*from));
  write_torch_file(folder + "w.pt", state_dict(*from));
  std::set<uint32_t> checksums;
  for (const char* name : {"w.safetensors", "w.pt"}) {
    auto to = small(2);
    checksums.insert(
        load_initial_weights(to, *source("unet"), folder + name, "").checksum);
    gpipe::testing::expect_equal(state_dict(*to), state_dict(*from));
  }
  EXPECT_EQ(checksums.size(), 1);
  auto to = small(2);
  write_safetensors(folder + "other.safetensors", state_dict(*to));
  EXPECT_EQ(
      checksums.count(load_initial_weights(to, *source("unet"),
                                           folder + "other.safetensors", "")
                          .checksum),
      0);
  EXPECT_THAT(value_error_of([&] {
                load_initial_weights(to, *source("unet"), folder + "w.bin", "");
              }),
              HasSubstr("should end in .pt, .pth or .safetensors"));
}

TEST(InitialWeightsTest, TorchvisionsNamesWillDoAndSomeMayBeSkipped) {
  const std::string path = new_folder() + "resnet50.safetensors";
  torch::manual_seed(1);
  const auto from = models::resnet50(4);
  write_safetensors(
      path, rename(state_dict(*from), models::torchvision_resnet50_names()));
  torch::manual_seed(2);
  auto to = models::resnet50(3);
  const at::Tensor fc = state_dict(*to)["fc.weight"].clone();
  EXPECT_THAT(value_error_of([&] {
                load_initial_weights(to, *source("resnet50"), path, "");
              }),
              HasSubstr("fc.weight"));
  const auto loaded =
      load_initial_weights(to, *source("resnet50"), path, "fc.");
  EXPECT_EQ(loaded.line, "318 of 320 tensors loaded from " + path);
  const StateDict expected = state_dict(*from), after = state_dict(*to);
  EXPECT_TRUE(bit_equal(after["layer3_0_conv1.weight"],
                        expected["layer3_0_conv1.weight"]));
  EXPECT_TRUE(bit_equal(after["fc.weight"], fc));
}

TEST(InitialWeightsTest, AnEntryIsNamedAndNotAllMayBeSkipped) {
  const std::string path = new_folder() + "w.pt";
  torch::manual_seed(1);
  auto model = models::resnet50(3);
  write_torch_file(path, state_dict(*model));
  const auto error = [&](const std::string& skip, const std::string& entry) {
    return value_error_of([&] {
      load_initial_weights(model, *source("resnet50"), path, skip, entry);
    });
  };
  EXPECT_EQ(error("fc.", "."), "no error");
  EXPECT_EQ(error("", "ema").rfind(path + ": has no entry 'ema'", 0), 0u);
  EXPECT_EQ(error("layer,conv,bn,fc,relu,maxpool", ""),
            "--weights_skip=layer,conv,bn,fc,relu,maxpool: all 320 tensors of "
            "the model are skipped, so that nothing of " +
                path + " would be loaded");
  EXPECT_EQ(value_error_of([] {
              read_named_tensors("--weights", "/w.safetensors", "ema");
            }),
            "--weights_entry=ema: /w.safetensors is a .safetensors file, which "
            "has no entries");
}

// A run checkpoint has the layer's name before each of Python's names, and one
// name for tied weights.
TEST(InitialWeightsTest, ExportedProgramsTakePythonsNamesAndThoseOfARun) {
  const std::string folder = new_folder();
  ModelSource from("models/exported/testdata/gpt.pt2"), to(from);
  auto trained = from.make({});
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& each : trained->parameters()) each.mul_(2);
  }
  const StateDict python = from.exported()->state_dict();
  EXPECT_TRUE(python.contains("head.weight"));
  EXPECT_FALSE(state_dict(*trained).contains("head.weight"));
  EXPECT_TRUE(state_dict(*trained).contains("token.token.weight"));
  write_torch_file(folder + "python.pt", python);
  write_safetensors(folder + "run.safetensors", state_dict(*trained));
  for (const auto& [name, count] :
       {std::pair("python.pt", "41"), std::pair("run.safetensors", "40")}) {
    auto model = to.make({});
    const auto loaded = load_initial_weights(model, to, folder + name, "");
    EXPECT_EQ(loaded.line, std::string(count) + " of " + count +
                               " tensors loaded from " + folder + name);
    gpipe::testing::expect_equal(to.exported()->state_dict(), python);
  }
  auto model = to.make({});
  const at::Tensor norm = to.exported()->state_dict()["norm.weight"].clone();
  EXPECT_EQ(load_initial_weights(model, to, folder + "python.pt", "norm.").line,
            "39 of 41 tensors loaded from " + folder + "python.pt");
  EXPECT_TRUE(bit_equal(to.exported()->state_dict()["norm.weight"], norm));
}

TEST(InitialWeightsTest, AFolderOfTransformersFillsAnExportedProgram) {
  const std::string folder = "models/weights/testdata/llama";
  ModelSource source("models/weights/testdata/llama.pt2");
  auto model = source.make({});
  const auto loaded = load_initial_weights(model, source, folder, "");
  EXPECT_EQ(loaded.line, "12 of 12 tensors loaded from " + folder);
  EXPECT_EQ(loaded.checksum, hugging_face_checksum(folder));
  const StateDict stored = read_hugging_face(folder);
  const auto expect_loaded = [&](const ExportedModel& part) {
    for (const auto& item : part.state_dict()) {
      const std::string name = item.key().substr(std::string("model.").size());
      EXPECT_TRUE(bit_equal(
          item.value(),
          stored[name == "lm_head.weight" ? "model.embed_tokens.weight"
                                          : name]))
          << name;
    }
  };
  expect_loaded(*source.exported());
  ExportedModel part = source.file()->read(0, source.file()->size() / 2);
  loaded.load_part(part);
  EXPECT_FALSE(part.state_dict().is_empty());
  expect_loaded(part);

  auto other = source.make({});
  EXPECT_EQ(
      load_initial_weights(other, source, folder, "model.model.norm.").line,
      "11 of 12 tensors loaded from " + folder);
  EXPECT_EQ(
      value_error_of(
          [&] { load_initial_weights(other, source, folder, "model."); }),
      "--weights_skip=model.: all 12 tensors of the model are skipped, so "
      "that nothing of " +
          folder + " would be loaded");
  EXPECT_EQ(
      value_error_of(
          [&] { load_initial_weights(other, source, folder, "", "ema"); }),
      "--weights_entry=ema: " + folder + " is a folder, which has no entries");
}

TEST(InitialWeightsTest, WeightsOfAFolderKeepTheDtypesOfTheProgram) {
  const std::string folder = new_folder();
  ModelSource source("models/exported/testdata/gpt.pt2");
  auto model = source.make({});
  const StateDict small = gpipe::testing::copy_of(
      source.exported()->state_dict(),
      [](const at::Tensor& each) { return each.to(torch::kBFloat16); });
  save_hugging_face(folder, small);
  EXPECT_EQ(
      value_error_of([&] { load_initial_weights(model, source, folder, ""); }),
      "--weights=" + folder +
          ": 'token.weight' is BFloat16, but --model "
          "was exported in Float; convert with --weights_dtype=float32, or "
          "export the model in BFloat16");
  model = source.make({});
  load_initial_weights(model, source, folder, "", "", "float32");
  EXPECT_TRUE(bit_equal(source.exported()->state_dict()["norm.weight"],
                        small["norm.weight"].to(torch::kFloat)));
  EXPECT_EQ(value_error_of([&] {
              load_initial_weights(model, source, folder, "", "", "int64");
            }),
            "--weights_dtype=int64: must be float32, bfloat16, float16 or "
            "float64");
}

TEST(InitialWeightsTest, AModelOfGpipeTakesAFolder) {
  const std::string folder = new_folder();
  const auto from = small(1);
  save_hugging_face(folder, state_dict(*from), 1000);
  auto to = small(2);
  load_initial_weights(to, *source("unet"), folder, "");
  gpipe::testing::expect_equal(state_dict(*to), state_dict(*from));
  EXPECT_THAT(
      value_error_of([&] {
        load_initial_weights(to, *source("unet"), folder, "", "", "float32");
      }),
      HasSubstr("--weights_dtype=float32: is for a folder of transformers "
                "and a .pt2 file"));
}

TEST(InitialWeightsTest, FlagsOfWeightsThatAreNotGivenAreRefused) {
  Options options = small_options("unet");
  options.steps = 1;
  options.weights_skip = "fc.";
  EXPECT_EQ(value_error_of([&] { run_here(options); }),
            "--weights_skip=fc., --weights_entry= and --weights_dtype= say how "
            "--weights is loaded, which is not given");
}

// ---- Adapters

constexpr char kProgram[] = "models/exported/testdata/gpt.pt2";

Options adapter_options(const std::string& model) {
  Options options = small_options(model);
  options.batch = 4;
  options.steps = 4;
  options.lr = 0.01;
  options.checkpoint = "never";
  options.lora_rank = 2;
  options.lora_dropout = 0.25;
  options.lora_targets = model == kProgram ? "qkv,up" : "linear1,out_proj";
  return options;
}

StateDict adapter_in(const std::string& run_dir) {
  return read_safetensors(run_dir + "/adapter/adapter_model.safetensors")
      .tensors;
}

class LoraSetupTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, LoraSetupTest,
                         ::testing::Values(kProgram, "transformer"));

TEST_P(LoraSetupTest, AStoppedRunGoesOnWithAdaptersAlone) {
  Options options = adapter_options(GetParam());
  options.run_dir = new_folder() + "whole";
  ASSERT_EQ(run_here(options).code, kDone);
  const RunState expected = state_in(options.run_dir);
  std::size_t adapters = 0;
  for (const auto& each : expected.model) {
    adapters += each.key().find(".lora.") != std::string::npos;
  }
  EXPECT_GT(adapters, 0u);
  EXPECT_EQ(expected.optimizer->parameters.size(), adapters);
  const StateDict whole = state_dict(*make_task(options)->model());
  EXPECT_LT(expected.model.size(), whole.size()) << "without the weights";

  options.run_dir = new_folder() + "stopped";
  Options shorter = options;
  shorter.steps = 2;
  ASSERT_EQ(run_here(shorter).code, kDone);
  const StateDict early = adapter_in(options.run_dir);
  const Ran second = run_here(options);
  EXPECT_EQ(second.code, kDone);
  EXPECT_NE(second.line_with("resumes at step 2"), "");
  gpipe::testing::expect_equal(state_in(options.run_dir).model, expected.model);
  const StateDict late = adapter_in(options.run_dir);
  ASSERT_EQ(late.size(), adapters);
  EXPECT_FALSE(late[0].value().equal(early[0].value()));

  // As if the run had died before it wrote the adapters of its last step.
  std::filesystem::remove_all(options.run_dir + "/adapter");
  EXPECT_EQ(run_here(options).code, kDone);
  gpipe::testing::expect_equal(adapter_in(options.run_dir), late);
}

TEST_P(LoraSetupTest, AnAdapterBeginsWithTheValuesOfAFolder) {
  Options options = adapter_options(GetParam());
  options.run_dir = new_folder() + "first";
  ASSERT_EQ(run_here(options).code, kDone);

  Options next = adapter_options(GetParam());
  next.adapter = options.run_dir + "/adapter";
  next.lora_rank = 0;
  next.lora_targets = "";
  const Options found = with_adapter_options(next);
  EXPECT_EQ(found.lora_rank, 2);
  EXPECT_EQ(found.lora_dropout, 0.25);
  EXPECT_EQ(found.lora_targets, options.lora_targets);
  next.run_dir = new_folder() + "next";
  next.lr = 1e-30;  // changes nothing
  next.weight_decay = 0;
  ASSERT_EQ(run_here(next).code, kDone);
  gpipe::testing::expect_equal(adapter_in(next.run_dir),
                               adapter_in(options.run_dir));
}

TEST_P(LoraSetupTest, MergedWeightsAreTheBaseWithTheAdapterOfTheRun) {
  const std::string folder = new_folder();
  Options options = adapter_options(GetParam());
  options.run_dir = folder + "run";
  options.save_weights = folder + "merged";
  options.merge_lora = true;
  ASSERT_EQ(run_here(options).code, kDone);
  torch::manual_seed(options.seed);
  const auto task = make_task(options);
  const torch::nn::Sequential base = task->model();
  StateDict expected = task->source().exported()
                           ? task->source().exported()->state_dict()
                           : state_dict(*base);
  merge_lora(options.run_dir + "/adapter", expected);
  const StateDict found = read_hugging_face(options.save_weights);
  for (const auto& item : expected) {
    if (item.key() == "head.weight") continue;  // tied, so not in the files
    EXPECT_TRUE(bit_equal(found[item.key()], item.value())) << item.key();
  }
  // A run that is done writes them again.
  const Ran again = run_here(options);
  EXPECT_EQ(again.code, kDone);
  EXPECT_NE(again.line_with("nothing to do"), "");
  gpipe::testing::expect_equal(read_hugging_face(options.save_weights), found);
}

TEST(LoraSetup, NamesOfMergedWeightsBeginAfterTheWrapper) {
  const std::string folder = new_folder();
  Options options = adapter_options(kProgram);
  options.steps = 1;
  options.merge_lora = true;
  options.save_weights = folder + "plain";
  ASSERT_EQ(run_here(options).code, kDone);
  options.lora_wrapper = "blocks";
  options.save_weights = folder + "wrapped";
  ASSERT_EQ(run_here(options).code, kDone);
  const StateDict plain = read_hugging_face(folder + "plain");
  const StateDict wrapped = read_hugging_face(options.save_weights);
  ASSERT_EQ(wrapped.size(), plain.size());
  EXPECT_TRUE(wrapped.contains("0.norm1.weight"));
  EXPECT_TRUE(wrapped.contains("token.weight"));
  for (const auto& item : plain) {
    const bool is_inside = item.key().starts_with("blocks.");
    EXPECT_TRUE(bit_equal(
        wrapped[is_inside ? item.key().substr(7) : item.key()], item.value()))
        << item.key();
  }
}

TEST(LoraSetup, AnotherBaseIsRefused) {
  Options options = adapter_options(kProgram);
  options.run_dir = new_folder() + "run";
  options.steps = 1;
  ASSERT_EQ(run_here(options).code, kDone);
  options.steps = 2;
  options.weights = new_folder() + "other.safetensors";
  StateDict weights = load_exported(kProgram).state_dict();
  write_safetensors(options.weights, gpipe::testing::copy_of(
                                         weights, [](const at::Tensor& each) {
                                           return each + 1;
                                         }));
  const std::string error = value_error_of([&] { run_here(options); });
  EXPECT_THAT(error,
              HasSubstr("the base of the adapters was '--model with weights of "
                        "checksum "));

  options.run_dir = new_folder() + "run";
  options.steps = 1;
  options.weights_skip = weights.keys()[0];
  ASSERT_EQ(run_here(options).code, kDone);
  options.steps = 2;
  options.weights_skip = "";
  EXPECT_THAT(
      value_error_of([&] { run_here(options); }),
      HasSubstr("--weights_skip was '" + weights.keys()[0] + "' and is ''"));
}

TEST(LoraSetup, FlagsThatDoNotFitAreRefused) {
  const auto error = [](int64_t rank, const std::string& targets) {
    Options options;
    options.lora_rank = rank;
    options.lora_targets = targets;
    return value_error_of([&] { with_adapter_options(options); });
  };
  EXPECT_EQ(error(-1, "a"),
            "--lora_rank=-1: must be at least 1, or 0 to train the weights");
  EXPECT_EQ(error(4, ""),
            "--lora_rank=4 needs --lora_targets, such as q_proj,v_proj");
  EXPECT_EQ(error(0, "a"),
            "--lora_targets=a: needs --lora_rank, which switches adapters on");
  EXPECT_EQ(error(0, ""), "no error");
  Options without;
  without.lora_alpha = 32;
  EXPECT_EQ(value_error_of([&] { with_adapter_options(without); }),
            "--lora_alpha=32, --lora_dropout=0 and --lora_rank_stabilized=0: "
            "there are no adapters; give --lora_rank or --adapter");

  const auto error_of_adapter = [](double alpha, double dropout,
                                   bool stabilized = false) {
    Options options;
    options.adapter = new_folder();
    StateDict adapter;
    adapter.insert("base_model.model.a.lora_A.weight", torch::ones({4, 2}));
    save_lora(options.adapter, adapter,
              LoraOptions().rank(4).alpha(8).dropout(0.5).targets({"a"}));
    options.lora_alpha = alpha;
    options.lora_dropout = dropout;
    options.lora_rank_stabilized = stabilized;
    return value_error_of([&] { with_adapter_options(options); });
  };
  EXPECT_EQ(error_of_adapter(16, 0), "no error") << "the defaults";
  EXPECT_EQ(error_of_adapter(8, 0.5), "no error");
  EXPECT_EQ(
      error_of_adapter(4, 0),
      "--lora_alpha=4, but that of --adapter is 8; leave out the flag, or "
      "give --lora_rank and --lora_targets, too");
  EXPECT_EQ(error_of_adapter(16, 0.25),
            "--lora_dropout=0.25, but that of --adapter is 0.5; leave out the "
            "flag, or give --lora_rank and --lora_targets, too");
  EXPECT_EQ(error_of_adapter(16, 0, true),
            "--lora_rank_stabilized=1, but that of --adapter is 0; leave out "
            "the flag, or give --lora_rank and --lora_targets, too");

  const auto error_of_saving = [](int64_t rank, const std::string& folder,
                                  bool merges) {
    Options options;
    options.lora_rank = rank;
    options.lora_targets = rank > 0 ? "a" : "";
    options.save_weights = folder;
    options.merge_lora = merges;
    return value_error_of([&] { with_adapter_options(options); });
  };
  EXPECT_EQ(error_of_saving(4, "out", false),
            "--save_weights=out: adapters are trained, and the weights do not "
            "change; --merge_lora writes the weights with the adapters added, "
            "or merge RUN_DIR/adapter into them later with "
            "tools:convert_weights --merge_lora");
  EXPECT_EQ(error_of_saving(4, "", true),
            "--merge_lora: needs --save_weights, the folder for the weights "
            "with the adapters added");
  EXPECT_EQ(error_of_saving(0, "out", true),
            "--merge_lora: there are no adapters; give --lora_rank or "
            "--adapter");
  EXPECT_EQ(error_of_saving(4, "out", true), "no error");
  EXPECT_EQ(error_of_saving(0, "out", false), "no error");
}

}  // namespace
}  // namespace gpipe::train_program
