// Runs that train adapters.
#include "training/program/lora_setup.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "models/lora.h"
#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "training/program/exit_code.h"
#include "training/program/make_task.h"
#include "training/program/testing/small_runs.h"
#include "training/testing/run_states.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;

constexpr char kProgram[] = "models/exported/testdata/gpt.pt2";

Options options_of(const std::string& model) {
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
  Options options = options_of(GetParam());
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
}

TEST_P(LoraSetupTest, AnAdapterBeginsWithTheValuesOfAFolder) {
  Options options = options_of(GetParam());
  options.run_dir = new_folder() + "first";
  ASSERT_EQ(run_here(options).code, kDone);

  Options next = options_of(GetParam());
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

TEST(LoraSetup, AnotherBaseIsRefused) {
  Options options = options_of(kProgram);
  options.run_dir = new_folder() + "run";
  options.steps = 1;
  ASSERT_EQ(run_here(options).code, kDone);
  options.steps = 2;
  options.weights = new_folder() + "other.safetensors";
  StateDict weights = load_exported(kProgram).state_dict();
  StateDict other;
  for (const auto& each : weights) {
    other.insert(each.key(), each.value() + 1);
  }
  write_safetensors(options.weights, other);
  const std::string error = value_error_of([&] { run_here(options); });
  EXPECT_NE(error.find("the base of the adapters was '--model with weights of "
                       "checksum "),
            std::string::npos)
      << error;
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
}

}  // namespace
}  // namespace gpipe::train_program
