// Continues prompts with the models of models/exported/testdata, and with one
// that is trained here.
#include "training/program/generate_run.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"
#include "models/exported/exported.h"
#include "models/lora.h"
#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "training/program/exit_code.h"
#include "training/program/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::argument;
using gpipe::testing::new_folder;
using gpipe::testing::RankProgramEntry;
using gpipe::testing::Ranks;
using gpipe::testing::world_options;

std::string file(const std::string& name) {
  return "models/exported/testdata/" + name;
}

Options options_of(const std::string& model, int64_t partitions) {
  Options options;
  options.model = file(model + ".pt2");
  options.partitions = partitions;
  options.devices = "cpu,cpu,cpu";
  options.threads = 1;
  return options;
}

// The prompts of make.py, and the twelve tokens that follow each.
GenerateRun pythons_run() {
  GenerateRun run;
  run.prompt_tokens = "1,2,3; 7;12,0,5,5,4";
  run.options.max_tokens = 12;
  return run;
}
const std::vector<std::string>& pythons_lines() {
  static const auto& lines = *new std::vector<std::string>{
      "1 2 3 9 12 4 7 3 7 10 4 7 3 8 5", "7 3 3 4 4 3 4 7 3 9 7 3 7",
      "12 0 5 5 4 10 11 7 3 2 11 4 4 3 7 4 3"};
  return lines;
}

std::vector<std::string> lines_of(const Options& options,
                                  const GenerateRun& run) {
  std::vector<std::string> lines;
  run_generate(
      options, run, [&](const std::string& line) { lines.push_back(line); },
      [](const std::string&) {});
  return lines;
}

TEST(GenerateRunTest, TokensArePythonsWithAndWithoutACache) {
  for (const char* model : {"window", "stepped", "prefilled"}) {
    for (const int64_t partitions : {1, 2, 3}) {
      for (const int64_t in_flight : {1, 2, 3}) {
        GenerateRun run = pythons_run();
        run.options.in_flight = in_flight;
        EXPECT_EQ(lines_of(options_of(model, partitions), run), pythons_lines())
            << model << " " << partitions << " " << in_flight;
      }
    }
  }
}

TEST(GenerateRunTest, DrawnTokensDoNotDependOnTheCacheOrThePartitions) {
  GenerateRun run = pythons_run();
  run.options.sampling.temperature = 2;
  run.samples = 2;
  const auto lines = lines_of(options_of("window", 1), run);
  EXPECT_EQ(lines.size(), 6U);
  EXPECT_NE(lines[0], lines[1]);
  run.options.in_flight = 5;
  EXPECT_EQ(lines_of(options_of("stepped", 2), run), lines);
}

TEST(GenerateRunTest, SequencesEndAtEosAndStop) {
  GenerateRun run = pythons_run();
  run.eos = "9,11";
  run.stop = "4,3; 8 8";
  EXPECT_EQ(
      lines_of(options_of("stepped", 1), run),
      (std::vector<std::string>{"1 2 3 9", "7 3 3 4 4 3", "12 0 5 5 4 10 11"}));
}

TEST(GenerateRunTest, PromptsComeFromAFile) {
  const std::string path = new_folder() + "prompts.txt";
  std::ofstream(path) << "1 2 3\n7\n\n12,0,5,5,4\n";
  GenerateRun run = pythons_run();
  run.prompt_tokens = "";
  run.prompts = path;
  EXPECT_EQ(lines_of(options_of("window", 1), run), pythons_lines());
}

TEST(GenerateRunTest, WeightsComeFromAFile) {
  const std::string path = new_folder() + "weights.safetensors";
  StateDict dict = load_exported(file("window.pt2")).state_dict();
  dict["model.head.weight"] = dict["model.head.weight"].zero_();
  dict["model.head.bias"].zero_()[6] = 1;  // so token 6 always follows
  write_safetensors(path, dict);
  Options options = options_of("stepped", 2);
  options.weights = path;
  GenerateRun run;
  run.prompt_tokens = "1";
  run.options.max_tokens = 3;
  EXPECT_EQ(lines_of(options, run), std::vector<std::string>{"1 6 6 6"});
}

TEST(GenerateRunTest, AnAdapterIsAddedToTheWeights) {
  const auto lora = LoraOptions().rank(2).targets({"head"}).wrapper("model");
  torch::manual_seed(3);
  ExportedModel model = add_lora(load_exported(file("window.pt2")), lora);
  for (const auto& item : lora_state_dict(*model.layers)) {
    item.value().normal_();  // B is 0 in a new adapter
  }
  const std::string folder = new_folder();
  save_lora(folder + "adapter", *model.layers, lora);
  merge_lora(*model.layers);
  write_safetensors(folder + "merged.safetensors", model.state_dict());

  Options merged = options_of("window", 1);
  merged.weights = folder + "merged.safetensors";
  const auto lines = lines_of(merged, pythons_run());
  EXPECT_NE(lines, pythons_lines());
  for (const char* name : {"window", "stepped"}) {
    Options adapted = options_of(name, 2);
    adapted.adapter = folder + "adapter";
    adapted.lora_wrapper = "model";
    EXPECT_EQ(lines_of(adapted, pythons_run()), lines) << name;
  }
}

const RankProgramEntry kGenerate("generate", [] {
  const WorldOptions world = world_options();
  setenv("RANK", std::to_string(world.rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(world.size).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(world.local_rank).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(world.size).c_str(), 1);
  setenv("MASTER_ADDR", world.address.c_str(), 1);
  setenv("MASTER_PORT", std::to_string(world.port).c_str(), 1);
  Options options = options_of(argument("model"), 1);
  options.distributed = true;
  options.timeout = 60;
  GenerateRun run = pythons_run();
  if (argument("differ") == "true") run.options.max_tokens -= world.rank;
  run_generate(
      options, run, [](const std::string& line) { std::cout << line << "\n"; },
      [](const std::string&) {});
  return 0;
});

TEST(GenerateRunTest, ProcessesGenerateTogether) {
  std::string expected;
  for (const std::string& each : pythons_lines()) expected += each + "\n";
  for (const char* model : {"window", "stepped"}) {
    Ranks ranks("generate", 2, {{"model", model}});
    const auto results = ranks.wait();
    testing::expect_all_ok(results);
    EXPECT_EQ(results[0].out, expected) << model;
    EXPECT_EQ(results[1].out, "") << model;
  }
}

TEST(GenerateRunTest, AFlagThatDiffersIsNamedByAllProcesses) {
  Ranks ranks("generate", 2, {{"model", "window"}, {"differ", "true"}});
  for (const auto& each : ranks.wait()) {
    EXPECT_EQ(each.exit.code, 1);
    EXPECT_NE(each.err.find("--max_tokens"), std::string::npos) << each.err;
  }
}

TEST(GenerateRunTest, ATextContinuesWithTheModelThatWasTrainedOnIt) {
  const std::string folder = new_folder();
  Options options = small_options("transformer");
  options.data_dir = folder + "text.txt";
  std::string text;
  for (int k = 0; k < 300; ++k) text += "abcd";
  std::ofstream(options.data_dir) << text;
  options.length = 12;
  options.steps = 60;
  options.lr = 0.01;
  options.run_dir = folder + "run";
  ASSERT_EQ(run_here(options).code, kDone);

  options.weights = folder + "run/step-000000000060/model.safetensors";
  options.run_dir = "";
  GenerateRun run;
  run.prompt = "cd";
  run.options.max_tokens = 30;  // more than the window
  EXPECT_EQ(lines_of(options, run),
            std::vector<std::string>{"cdabcdabcdabcdabcdabcdabcdabcdab"});
  run.stop = "cda";
  EXPECT_EQ(lines_of(options, run), std::vector<std::string>{"cdabcda"});
}

TEST(GenerateRunTest, ErrorsSayWhatToDo) {
  const auto expect = [](const Options& options, const GenerateRun& run,
                         const std::string& part) {
    std::string text;
    try {
      lines_of(options, run);
    } catch (const c10::ValueError& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  GenerateRun run;
  expect(options_of("window", 1), run, "there is no prompt");
  run.prompt = "a";
  expect(options_of("window", 1), run, "use --prompt_tokens");
  run.prompt = "";
  run.prompt_tokens = "1,x";
  expect(options_of("window", 1), run, "'x' is no number of a token");
  run.prompt_tokens = "1,13";
  expect(options_of("window", 1), run,
         "prompt 0 has the token 13, but the model has 13 tokens, 0 to 12");
  run.prompt_tokens = "1";
  for (const char* model : {"window", "stepped"}) {
    run.options.max_tokens = 25;
    expect(options_of(model, 1), run, "use --max_tokens=24 or less");
  }
  run.options.max_tokens = 24;
  EXPECT_EQ(lines_of(options_of("window", 1), run),
            lines_of(options_of("stepped", 1), run));
  run.samples = 0;
  expect(options_of("window", 1), run, "--samples=0");
  run.samples = 1;
  expect(options_of("tiny", 1), run, "generation knows no value for");
  Options options = options_of("window", 1);
  options.balance = "1,1";
  expect(options, run, "--balance=1,1 is 2 partitions");
  options = options_of("window", 1);
  options.model = "transformer";
  expect(options, run, "needs --data_dir");
}

}  // namespace
}  // namespace gpipe::train_program
