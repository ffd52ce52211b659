// Tests that a run which was stopped and resumed is bitwise equal to an
// uninterrupted run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "training/program/run.h"
#include "training/program/task.h"
#include "training/run_files.h"
#include "training/testing/run_states.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::read_bytes;
using gpipe::testing::value_error_of;
using gpipe::testing::write_bytes;
using ::testing::HasSubstr;

// Returns options that use everything that a resumed run could get wrong.
Options options_of(const std::string& model) {
  Options options = small_options(model);
  options.batch = 4;
  options.checkpoint = "never";  // computes each loss only once
  options.steps = 6;
  options.accumulate = 2;
  options.clip = 0.5;
  options.lr_schedule = "warmup:2,cosine:10";
  options.run_dir = new_folder() + "run";
  return options;
}

// A task that raises signal `number` in the first loss of step `stop`, counted
// from 1.
class StoppedTask : public TaskWith {
 public:
  StoppedTask(Task& task, int64_t losses_per_step, int64_t stop, int number)
      : TaskWith(task, [this, losses_per_step, stop,
                        number](const at::Tensor& output) {
          if (++losses_ == (stop - 1) * losses_per_step + 1) raise(number);
          return output;
        }) {}

 private:
  std::atomic<int64_t> losses_{0};
};

void expect_goes_on(Options options) {
  options.run_dir = new_folder() + "whole";
  EXPECT_EQ(run_here(options).code, kDone);
  const RunState expected = state_in(options.run_dir);
  ASSERT_EQ(expected.step, options.steps);

  options.run_dir = new_folder() + "stopped";
  const auto task = make_task(options);
  StoppedTask stopped(*task, options.accumulate * options.chunks, 3, SIGINT);
  const Ran first = run_here(options, stopped);
  EXPECT_EQ(first.code, kSignal + SIGINT);
  EXPECT_NE(first.line_with("SIGINT: ends after step 3 of 6, saved in " +
                            options.run_dir),
            "");
  EXPECT_EQ(state_in(options.run_dir).step, 3);
  const Ran second = run_here(options);
  EXPECT_EQ(second.code, kDone);
  EXPECT_NE(second.line_with("resumes at step 3"), "");
  gpipe::testing::expect_equal(state_in(options.run_dir), expected);
}

TEST(ResumeTest, ImagesGoOn) { expect_goes_on(options_of("amoebanetd")); }

TEST(ResumeTest, AnExportedTextGoesOnWithDropout) {
  expect_goes_on(options_of("models/exported/testdata/gpt.pt2"));
}

TEST(ResumeTest, ExportedImagesGoOnWithAutocast) {
  Options options = options_of("models/exported/testdata/photos.pt2");
  options.size = 0;
  options.precision = "amp-bfloat16";
  expect_goes_on(options);
}

TEST(ResumeTest, AnotherExportedProgramIsRefused) {
  Options options = options_of("models/exported/testdata/gpt.pt2");
  options.steps = 1;
  run_here(options);
  options.model = "models/exported/testdata/letters.pt2";
  const std::string error = value_error_of([&] { run_here(options); });
  EXPECT_THAT(error, HasSubstr("--model was 'gpt.pt2, checksum "));
}

TEST(ResumeTest, MasksGoOnWithAutocast) {
  Options options = options_of("unet");
  options.precision = "amp-bfloat16";
  options.optimizer = "sgd";
  expect_goes_on(options);
}

TEST(ResumeTest, TextGoesOnWithDropout) {
  Options options = options_of("transformer");
  options.transformer_dropout = 0.3;
  expect_goes_on(options);
}

TEST(ResumeTest, TextGoesOnWithScaledLossesOfFloat16) {
  Options options = options_of("transformer");
  options.precision = "amp-float16";
  options.optimizer = "rmsprop";
  expect_goes_on(options);
}

TEST(ResumeTest, TextGoesOnInBfloat16) {
  Options options = options_of("transformer");
  options.precision = "bfloat16";
  options.optimizer = "adagrad";
  expect_goes_on(options);
}

TEST(ResumeTest, SequencesGoOn) {
  Options options = options_of("transformer");
  options.bucket = 4;
  options.transformer_dropout = 0.3;
  expect_goes_on(options);
}

TEST(ResumeTest, OffloadChangesNoBit) {
  Options options = options_of("transformer");
  options.transformer_dropout = 0.2;
  options.run_dir = new_folder() + "without";
  EXPECT_EQ(run_here(options).code, kDone);
  const RunState expected = state_in(options.run_dir);
  for (const std::string offload : {"0", "1", "auto"}) {
    options.offload = offload;
    options.run_dir = new_folder() + offload;
    EXPECT_EQ(run_here(options).code, kDone);
    gpipe::testing::expect_equal(state_in(options.run_dir), expected);
  }
  options.offload = "some";
  EXPECT_EQ(value_error_of([&] { run_here(options); }),
            "--offload=some: must be none, auto, or a number of actions >= 0");
}

TEST(ResumeTest, SavesInTheBackgroundHaveTheBitsOfThoseThatBlock) {
  Options options = options_of("transformer");
  options.save_every = 2;
  options.keep = 10;
  options.run_dir = new_folder() + "blocking";
  run_here(options);
  RunFiles expected(options.run_dir);
  ASSERT_EQ(expected.steps(), (std::vector<int64_t>{2, 4, 6}));

  options.run_dir = new_folder() + "background";
  options.save_in_background = true;
  const Ran ran = run_here(options);
  EXPECT_EQ(ran.code, kDone);
  for (const std::string step : {"2", "4"}) {
    EXPECT_NE(ran.line_with("step " + step +
                            " is saved in the background; "
                            "training stopped for "),
              "");
  }
  // Nothing goes on beside the last save.
  EXPECT_EQ(ran.line_with("step 6 is saved in the background"), "");
  RunFiles files(options.run_dir);
  ASSERT_EQ(files.steps(), expected.steps());
  for (const int64_t step : files.steps()) {
    gpipe::testing::expect_equal(files.load(step), expected.load(step));
  }
}

TEST(ResumeTest, SigtermDoesTheSameAndASignalWhileABatchIsLoadedCounts) {
  Options options = options_of("transformer");
  const auto task = make_task(options);
  TaskWith stopped(*task, nullptr, [](int64_t index) {
    if (index == 5) raise(SIGTERM);  // when data of step 3 is loaded ahead
  });
  EXPECT_EQ(run_here(options, stopped).code, kSignal + SIGTERM);
  const int64_t step = state_in(options.run_dir).step;
  EXPECT_GE(step, 2);
  EXPECT_LE(step, 3);
}

TEST(ResumeTest, WithoutAFolderTheStoppedRunSaysThatNothingIsSaved) {
  Options options = options_of("transformer");
  options.run_dir = "";
  const auto task = make_task(options);
  StoppedTask stopped(*task, 4, 2, SIGINT);
  const Ran ran = run_here(options, stopped);
  EXPECT_EQ(ran.code, kSignal + SIGINT);
  EXPECT_NE(ran.line_with("nothing is saved without --run_dir"), "");
}

TEST(ResumeTest, AnotherTaskIsRefusedByTheNamesOfItsFlags) {
  Options options = options_of("transformer");
  options.steps = 1;
  run_here(options);
  options.steps = 2;
  options.batch = 2;
  options.optimizer = "sgd";
  const std::string error = value_error_of([&] { run_here(options); });
  EXPECT_THAT(error, HasSubstr("--batch was '4' and is '2'"));
  EXPECT_THAT(error, HasSubstr("--optimizer was 'adamw' and is 'sgd'"));
}

TEST(ResumeTest, AnotherBucketIsRefused) {
  Options options = options_of("transformer");
  options.bucket = 4;
  options.steps = 1;
  run_here(options);
  options.steps = 2;
  for (const int64_t bucket : {0, 8}) {
    options.bucket = bucket;
    const std::string error = value_error_of([&] { run_here(options); });
    EXPECT_THAT(error, HasSubstr("--bucket was '4' and is '" +
                                 std::to_string(bucket) + "'"));
  }
}

// Both texts have the same numbers of characters, so that the vocabularies map
// the tokens of the first text to other characters of the second one.
TEST(ResumeTest, OtherDataOfTheSameSizeIsRefused) {
  Options options = options_of("transformer");
  options.data_dir = new_folder() + "text.txt";
  std::string text;
  for (int k = 0; k < 300; ++k) text += "abcd";
  write_bytes(options.data_dir, text);
  options.steps = 1;
  EXPECT_EQ(run_here(options).code, kDone);
  options.steps = 2;
  std::replace(text.begin(), text.end(), 'a', 'z');
  write_bytes(options.data_dir, text);
  const std::string error = value_error_of([&] { run_here(options); });
  EXPECT_THAT(error, HasSubstr("the data was 'of checksum "));
  std::replace(text.begin(), text.end(), 'z', 'a');
  write_bytes(options.data_dir + ".moved", text);
  options.data_dir += ".moved";
  EXPECT_NE(run_here(options).line_with("resumes at step 1"), "");
}

TEST(ResumeTest, ARateMayChangeAndThatIsSaid) {
  Options options = options_of("transformer");
  options.steps = 1;
  run_here(options);
  options.steps = 2;
  options.lr = 0.5;
  const Ran ran = run_here(options);
  EXPECT_EQ(ran.code, kDone);
  EXPECT_NE(ran.line_with("from here on --lr is '0.5'"), "");
}

TEST(ResumeTest, WeightsThatAreNotReadAreNamed) {
  Options options = options_of("transformer");
  options.steps = 1;
  run_here(options);
  options.steps = 2;
  options.weights = "/nowhere.pt";
  const Ran ran = run_here(options);
  EXPECT_EQ(ran.code, kDone);
  EXPECT_NE(ran.line_with("--weights=/nowhere.pt is not read"), "");
}

TEST(ResumeTest, AFinishedRunHasNothingToDo) {
  Options options = options_of("transformer");
  options.steps = 1;
  run_here(options);
  const Ran ran = run_here(options);
  EXPECT_EQ(ran.code, kDone);
  EXPECT_NE(ran.line_with("nothing to do: 1 of 1 steps are done"), "");
}

TEST(ResumeTest, ABeginningBeforeStepsThatAreThereIsRefused) {
  Options options = options_of("transformer");
  options.steps = 2;
  options.save_every = 1;
  run_here(options);
  for (const char* how : {"none", "1"}) {
    options.resume = how;
    const std::string error = value_error_of([&] { run_here(options); });
    EXPECT_THAT(error, HasSubstr("step-000000000002 is of an earlier run"));
  }
  options.resume = "2";
  options.steps = 3;
  EXPECT_EQ(run_here(options).code, kDone);
}

// A damaged header is found when the step is opened, a damaged tensor only when
// it is loaded.
TEST(ResumeTest, WhereEachStepIsDamagedNothingBeginsAnew) {
  Options options = options_of("transformer");
  options.steps = 2;
  options.save_every = 1;
  run_here(options);
  const std::string log = read_bytes(options.run_dir + "/metrics.csv");
  options.steps = 3;
  for (const char* file : {"model.safetensors", "manifest.json"}) {
    for (const char* step : {"1", "2"}) {
      const std::string path =
          options.run_dir + "/step-00000000000" + step + "/" + file;
      std::string bytes = read_bytes(path);
      bytes.back() ^= 1;
      write_bytes(path, bytes);
    }
    const std::string error = value_error_of([&] { run_here(options); });
    EXPECT_THAT(error,
                HasSubstr("all steps in " + options.run_dir + " are damaged"));
    EXPECT_EQ(read_bytes(options.run_dir + "/metrics.csv"), log);
  }
}

TEST(ResumeTest, TheLogHasEachStepOnce) {
  Options options = options_of("transformer");
  options.eval_every = 2;
  const auto task = make_task(options);
  StoppedTask stopped(*task, 4, 3, SIGINT);
  run_here(options, stopped);
  run_here(options);
  std::ifstream log(options.run_dir + "/metrics.csv");
  std::vector<std::string> steps;
  for (std::string line; std::getline(log, line);) {
    steps.push_back(line.substr(0, line.find(',')));
  }
  EXPECT_EQ(steps,
            (std::vector<std::string>{"step", "1", "2", "3", "4", "5", "6"}));
  const std::string all = read_bytes(options.run_dir + "/metrics.csv");
  for (const char* column : {"loss", "lr", "grad_norm", "test_loss",
                             "test_perplexity", "windows_per_second"}) {
    EXPECT_THAT(all.substr(0, all.find('\n')), HasSubstr(column)) << column;
  }
}

TEST(ResumeTest, TheTrainingScoreCountsTheStepsBeforeTheStop) {
  Options options = options_of("transformer");
  options.eval_every = 4;
  options.train_score = true;
  const auto task = make_task(options);
  std::vector<std::string> scores, lines;
  for (const int64_t stop : {100, 3, 4}) {  // 4: before its evaluation
    options.run_dir = new_folder() + "run";
    StoppedTask stopped(*task, 4, stop, SIGINT);
    Ran ran = run_here(options, stopped);
    if (stop < 100) ran = run_here(options);
    scores.push_back(logged(options.run_dir, 4, "train_perplexity") + " " +
                     logged(options.run_dir, 6, "train_perplexity"));
    const std::string line = ran.line_with("step 4/6 | epoch");
    lines.push_back(line.substr(0, line.rfind(" |")));  // without the time
  }
  EXPECT_NE(scores[0], " ");
  EXPECT_NE(lines[0], "");
  for (const std::size_t k : {1, 2}) {
    EXPECT_EQ(scores[k], scores[0]);
    EXPECT_EQ(lines[k], lines[0]);
  }
}

// A task that raises SIGINT in an evaluation.
class StoppedInTest : public TaskWith {
 public:
  explicit StoppedInTest(Task& task) : TaskWith(task, nullptr) {}
  Sample test_batch(int64_t index) override {
    raise(SIGINT);
    // A second signal would end the process.
    std::signal(SIGINT, SIG_IGN);
    return TaskWith::test_batch(index);
  }
};

// Stops a run in step `stop`, at whose end an evaluation is due. Expects that
// the resumed run first does this evaluation.
void expect_test_is_made_up(Options options, int64_t stop) {
  options.run_dir = new_folder() + "whole";
  EXPECT_EQ(run_here(options).code, kDone);
  const std::string loss = logged(options.run_dir, stop, "test_loss");
  ASSERT_NE(loss, "");
  const RunState expected = state_in(options.run_dir);

  options.run_dir = new_folder() + "stopped";
  const auto task = make_task(options);
  StoppedTask stopped(*task, options.accumulate * options.chunks, stop, SIGINT);
  const Ran first = run_here(options, stopped);
  EXPECT_EQ(first.code, kSignal + SIGINT);
  EXPECT_NE(first.line_with("SIGINT: ends after step " + std::to_string(stop) +
                            " of " + std::to_string(options.steps) +
                            ", before its evaluation, saved in "),
            "");
  EXPECT_EQ(logged(options.run_dir, stop, "test_loss"), "");
  const std::string step_loss = logged(options.run_dir, stop, "loss");
  EXPECT_NE(step_loss, "");

  // Interrupts the evaluation once more.
  StoppedInTest again(*task);
  EXPECT_EQ(run_here(options, again).code, kSignal + SIGINT);
  EXPECT_EQ(logged(options.run_dir, stop, "test_loss"), "");

  const Ran second = run_here(options);
  EXPECT_EQ(second.code, kDone);
  EXPECT_EQ(logged(options.run_dir, stop, "test_loss"), loss);
  EXPECT_EQ(logged(options.run_dir, stop, "loss"), step_loss);
  gpipe::testing::expect_equal(state_in(options.run_dir), expected);
  EXPECT_NE(run_here(options).line_with("nothing to do"), "");
}

TEST(ResumeTest, ATestThatASignalHasCutOffIsMadeFirst) {
  Options options = options_of("transformer");
  options.eval_every = 2;
  options.steps = 3;
  expect_test_is_made_up(options, 2);
}

TEST(ResumeTest, TheLastTestIsMadeUpByARunWithoutSteps) {
  Options options = options_of("transformer");
  options.eval_every = 10;
  options.steps = 2;
  expect_test_is_made_up(options, 2);
}

}  // namespace
}  // namespace gpipe::train_program
