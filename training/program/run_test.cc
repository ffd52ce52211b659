#include "training/program/run.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/base/run_main.h"
#include "models/testing/files.h"
#include "training/program/task.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

// The exit code and the text of an error.
struct Ending {
  int code;
  std::string text;
};

Ending ending_after(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return {is_of_user(error) ? kWrongFlags : kFailed, error_text(error)};
  }
  return {kDone, ""};
}

void expect_refused(const Options& options, const std::string& text) {
  const Ending ending = ending_after([&] { run_here(options); });
  EXPECT_EQ(ending.code, kWrongFlags) << text;
  EXPECT_NE(ending.text.find(text), std::string::npos) << ending.text;
}

TEST(RunTest, WrongFlagsAreNamedWithWhatThereIs) {
  const Options good = small_options("transformer");
  const auto with = [&](const std::function<void(Options&)>& change) {
    Options options = good;
    change(options);
    return options;
  };
  expect_refused(with([](Options& o) { o.precision = "fp8"; }),
                 "--precision=fp8: must be float32, amp-float16");
  expect_refused(with([](Options& o) { o.lr_schedule = "up"; }), "up");
  expect_refused(
      with([](Options& o) { o.optimizer = "lion"; }),
      "--optimizer=lion: must be sgd, adam, adamw, rmsprop or adagrad");
  expect_refused(with([](Options& o) { o.lr = 0; }), "--lr=0");
  expect_refused(with([](Options& o) { o.schedule = "abc"; }),
                 "there are fill-drain, 1f1b");
  expect_refused(with([](Options& o) { o.schedule = "forward-only"; }),
                 "does not train");
  expect_refused(with([](Options& o) { o.checkpoint = "some"; }),
                 "--checkpoint=some");
  expect_refused(with([](Options& o) { o.balance = "1,2"; }),
                 "there are 2 stages and 7 layers");
  expect_refused(with([](Options& o) { o.partitions = 8; }),
                 "8 stages are more than the model's 7 layers");
  expect_refused(with([](Options& o) { o.partitions = 3; }), "too few devices");
  constexpr int64_t kNoInt = (int64_t{1} << 32) + 1;
  expect_refused(with([](Options& o) { o.partitions = kNoInt; }),
                 "--partitions=4294967297: must be at most");
  expect_refused(with([](Options& o) { o.stages_per_rank = kNoInt; }),
                 "--stages_per_rank=4294967297: must be at most");
  expect_refused(with([](Options& o) { o.accumulate = kNoInt; }),
                 "--accumulate=4294967297: must be at most");
  expect_refused(with([](Options& o) { o.accumulate = int64_t{1} << 30; }),
                 "--accumulate=1073741824 and --chunks=2 are 2147483648 "
                 "micro-batches per step; must be at most");
  expect_refused(with([](Options& o) {
                   o.steps = 0;
                   o.epochs = std::numeric_limits<int64_t>::max();
                 }),
                 "mini-batches are more steps than can be counted");
  expect_refused(with([](Options& o) { o.data_parallel = 2; }),
                 "with --distributed");
  expect_refused(with([](Options& o) { o.accumulate = 0; }), "--accumulate=0");
  expect_refused(with([](Options& o) { o.bucket = -1; }), "--bucket=-1");
  expect_refused(with([](Options& o) { o.bucket = 13; }),
                 "--bucket=13 is above --length=12");
  expect_refused(with([](Options& o) { o.clip = -1; }), "--clip=-1");
  expect_refused(with([](Options& o) { o.sample = -1; }), "--sample=-1");
  expect_refused(with([](Options& o) {
                   o.model = "unet";
                   o.sample = 9;
                 }),
                 "--sample=9 needs a text");
  expect_refused(with([](Options& o) { o.trace_step = 0; }),
                 "--trace_step=0: must be at least 1");
  expect_refused(with([](Options& o) { o.trace = "/"; }),
                 "--trace=/ is a folder; name a file");
  expect_refused(with([](Options& o) { o.trace = o.kineto = "a.json"; }),
                 "--trace and --kineto name the same file, a.json");
  expect_refused(with([](Options& o) {
                   o.run_dir = "run";
                   o.trace = "run/metrics.csv";
                 }),
                 "--run_dir and --trace name the same file, run/metrics.csv");
  const std::string text = gpipe::testing::new_folder() + "text.txt";
  gpipe::testing::write_bytes(text, std::string(400, 'a') + "b");
  expect_refused(with([&](Options& o) { o.data_dir = o.trace = text; }),
                 "--data_dir and --trace name the same file, " + text);
  expect_refused(with([](Options& o) { o.keep = 0; }), "--keep=0");
  expect_refused(with([](Options& o) { o.save_every = -1; }),
                 "--save_every=-1");
  expect_refused(with([](Options& o) { o.eval_every = -2; }),
                 "--eval_every=-2");
  expect_refused(with([](Options& o) { o.threads = -1; }), "--threads=-1");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  expect_refused(with([](Options& o) { o.lr = kInfinity; }), "--lr=inf");
  expect_refused(with([](Options& o) { o.weight_decay = kInfinity; }),
                 "--weight_decay=inf");
  expect_refused(
      with([](Options& o) { o.balance = "9223372036854775807,9"; }),
      "is 2 stages with 9.22337e+18 layers; there are 2 stages and 7 layers");
  expect_refused(with([](Options& o) { o.resume = "4000"; }),
                 "--resume=4000: needs --run_dir");
  expect_refused(with([](Options& o) { o.weights = "/nowhere.pt"; }),
                 "/nowhere.pt");
}

TEST(RunTest, WhatCannotBeSavedIsRefusedBeforeTheFirstStep) {
  const auto refuse = [](const Options& options, const std::string& text) {
    const auto task = make_task(options);
    std::atomic<int> losses{0};
    TaskWith counted(*task, [&](const at::Tensor& output) {
      ++losses;
      return output;
    });
    counted.change_model = [](torch::nn::Sequential model) {
      model->ptr(0)->register_buffer("angles",
                                     at::zeros(2, at::kComplexDouble));
      return model;
    };
    const Ending ending = ending_after([&] { run_here(options, counted); });
    EXPECT_EQ(ending.code, kWrongFlags);
    EXPECT_NE(ending.text.find(text), std::string::npos) << ending.text;
    EXPECT_EQ(losses, 0);
  };
  const std::string folder = gpipe::testing::new_folder();
  const Options good = small_options("transformer");
  const std::string dtype =
      "angles' is ComplexDouble, which safetensors does not support";
  Options options = good;
  options.run_dir = folder + "run";
  refuse(options, dtype);
  options = good;
  options.save_weights = folder + "weights";
  refuse(options, dtype);

  options = good;
  options.model = folder + "mod\xe8le.pt2";  // Latin-1
  std::filesystem::copy_file("models/exported/testdata/gpt.pt2", options.model);
  options.run_dir = folder + "run of a file";
  expect_refused(
      options, "a name or an entry of `metadata` in a run state is not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(options.run_dir));
}

TEST(RunTest, FlagsThatNothingReadsAreNamed) {
  Options options = small_options("transformer");
  options.steps = 1;
  options.size = 0;
  options.sizes = Options().sizes;
  options.sizes["transformer"] = {.layers = 2, .width = 16, .heads = 2};
  options.save_every = Options().save_every;
  const auto notes = [&] {
    std::vector<std::string> lines = run_here(options).lines;
    std::erase_if(lines, [](const std::string& each) {
      return each.find("changes nothing") == std::string::npos;
    });
    return lines;
  };
  EXPECT_EQ(notes(), std::vector<std::string>());
  options.size = 16;
  options.crop = "none";
  options.sizes["unet"].depth = 2;
  options.max_crossing = 1;
  options.eval_model = "second.pt2";
  options.keep = 5;
  options.save_in_background = true;
  options.shard_size = 7;
  options.trace_step = 1;
  options.timeout = 9.5;
  options.momentum = 0.5;
  options.epochs = 3;
  options.shard_optimizer = true;
  options.train_score = true;
  options.lora_wrapper = "module";
  options.offload = "1";
  options.checkpoint = "always";
  EXPECT_THAT(
      notes(),
      ::testing::ElementsAre(
          "--max_crossing=1 changes nothing: it needs a --model that is a .pt2 "
          "file",
          "--size=16 changes nothing: it needs images",
          "--crop=none changes nothing: it needs labelled images",
          "--unet_depth=2 changes nothing: it needs --model=unet",
          "--lora_wrapper=module changes nothing: it needs --lora_rank, "
          "--adapter or --save_weights",
          "--epochs=3 changes nothing: it needs --steps=0",
          "--momentum=0.5 changes nothing: it needs --optimizer=sgd or "
          "--optimizer=rmsprop",
          "--eval_model=second.pt2 changes nothing: it needs an --eval_every "
          "of 0 or more",
          "--train_score=true changes nothing: it needs an --eval_every of 0 "
          "or more",
          "--save_in_background=true changes nothing: it needs --run_dir",
          "--keep=5 changes nothing: it needs --run_dir",
          "--shard_size=7 changes nothing: it needs --save_weights",
          "--trace_step=1 changes nothing: it needs --trace or --kineto",
          "--offload=1 changes nothing: it needs another --checkpoint",
          "--shard_optimizer=true changes nothing: it needs a --data_parallel "
          "of 2 or more",
          "--timeout=9.5 changes nothing: it needs --distributed"));
}

TEST(RunTest, FlagsThatAPlanReplacesAreRefused) {
  const auto refuse = [](const std::function<void(Options&)>& change,
                         const std::string& text) {
    Options options = planned_options("transformer", "auto");
    change(options);
    expect_refused(options, text);
  };
  refuse([](Options& o) { o.balance = "3,4"; },
         "--balance=3,4: is chosen by --plan=auto; leave out one of both "
         "flags");
  refuse([](Options& o) { o.chunks = -3; },
         "--chunks=-3: is chosen by --plan=auto");
  refuse([](Options& o) { o.schedule = "zb-h1"; },
         "--schedule=zb-h1: is chosen by --plan=auto");
  refuse([](Options& o) { o.stages_per_rank = 2; },
         "--stages_per_rank=2: is chosen by --plan=auto");
  refuse(
      [](Options& o) {
        o.plan = "plan.json";
        o.checkpoint = "never";
      },
      "--checkpoint=never: is chosen by --plan=plan.json");
  refuse(
      [](Options& o) {
        o.plan = "plan.json";
        o.offload = "2";
      },
      "--offload=2: is chosen by --plan=plan.json");
  for (const char* wrong : {"of", "-1", "7"}) {
    refuse([&](Options& o) { o.offload = wrong; },
           "--offload=" + std::string(wrong) +
               ": must be none or auto with --plan=auto");
  }
  refuse([](Options& o) { o.plan_memory_gib = -1; },
         "--plan_memory_gib=-1: must not be negative");
  refuse(
      [](Options& o) {
        o.plan = "";
        o.plan_memory_gib = 2;
      },
      "--plan_memory_gib=2: is for --plan=auto, not --plan=");
}

TEST(RunTest, WhatIsNoFlagsFaultIsAFailure) {
  EXPECT_EQ(ending_after([] { TORCH_CHECK(false, "a"); }).code, kFailed);
  EXPECT_EQ(ending_after([] { TORCH_CHECK(false, "a"); }).text, "a");
  EXPECT_EQ(ending_after([] { throw std::runtime_error("b"); }).code, kFailed);
  EXPECT_EQ(ending_after([] { throw std::invalid_argument("b"); }).code,
            kWrongFlags);
}

TEST(RunTest, EvaluationsReachTheCallerWithThePipeline) {
  Options options = small_options("amoebanetd");
  options.steps = 3;
  options.eval_every = 2;
  options.train_score = true;
  const auto task = make_task(options);
  std::vector<Evaluation> evaluations;
  const auto keep = [&](const Evaluation& each, PipelineModule& pipeline) {
    evaluations.push_back(each);
    EXPECT_EQ(pipeline.balance().size(), 2);
    EXPECT_FALSE(pipeline.parameters().empty());
  };
  EXPECT_EQ(run(
                options, *task, [](const std::string&) {}, keep),
            kDone);
  ASSERT_EQ(evaluations.size(), 2);
  for (const Evaluation& each : evaluations) {
    EXPECT_EQ(each.train.items, static_cast<double>(8 * each.steps));
    EXPECT_NEAR(each.train.loss, 8 * each.losses, 1e-4);
    EXPECT_EQ(each.test.items, 256);
    EXPECT_GT(each.seconds, 0);
    EXPECT_GT(each.cpu_seconds, 0);
  }
  EXPECT_EQ(evaluations[0].step, 2);
  EXPECT_EQ(evaluations[0].steps, 2);
  EXPECT_EQ(evaluations[1].step, 3);
  EXPECT_EQ(evaluations[1].steps, 1);
}

TEST(RunTest, AModelWritesATextAfterEachEvaluation) {
  Options options = small_options("transformer");
  options.data_dir = gpipe::testing::new_folder() + "text.txt";
  std::string text;
  for (int k = 0; k < 300; ++k) text += "abcd";
  std::ofstream(options.data_dir) << text;
  options.steps = 60;
  options.lr = 0.01;
  options.eval_every = 30;
  const auto lines_of = [&](int64_t sample) {
    options.sample = sample;
    std::vector<std::string> lines = run_here(options).lines;
    // The time at the end of a line differs.
    for (std::string& each : lines) each = each.substr(0, each.rfind(" |"));
    return lines;
  };
  std::vector<std::string> lines = lines_of(40);
  // The first 8 characters of the test data, and 40 more.
  const std::string expected = "the model writes: " + text.substr(0, 48);
  EXPECT_GE(std::count(lines.begin(), lines.end(), expected), 1);
  // Nothing else changes. A slow machine also prints lines of progress.
  const auto without = [](std::vector<std::string> lines, const char* start) {
    std::erase_if(lines, [&](const std::string& each) {
      return each.starts_with(start);
    });
    return lines;
  };
  EXPECT_EQ(without(lines_of(0), "["),
            without(without(lines, "["), "the model writes: "));
}

// The shortest line of the test data is "b" and a line end.
TEST(RunTest, AModelOfLinesWritesWithoutPadding) {
  Options options = small_options("transformer");
  options.data_dir = gpipe::testing::new_folder() + "text.txt";
  std::string text;
  for (int k = 0; k < 40; ++k) text += "b\nabcdefg\n";
  std::ofstream(options.data_dir) << text;
  options.bucket = 4;
  options.steps = 1;
  options.eval_every = 1;
  options.sample = 3;
  const std::string line = run_here(options).line_with("the model writes: ");
  EXPECT_EQ(line.find("the model writes: \nb"), 0) << line;
  EXPECT_EQ(line.size(), std::string("the model writes: \nb").size() + 3);
}

TEST(RunTest, EachModelTrainsOnWhatItDraws) {
  for (const char* model : {"amoebanetd", "unet", "transformer"}) {
    Options options = small_options(model);
    options.steps = 1;
    const Ran ran = run_here(options);
    EXPECT_EQ(ran.code, kDone) << model;
    EXPECT_NE(ran.line_with("generated by this program"), "") << model;
    EXPECT_NE(ran.line_with("all 1 steps are done"), "") << model;
  }
}

}  // namespace
}  // namespace gpipe::train_program
