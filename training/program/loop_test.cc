#include "training/program/loop.h"

#include <ATen/ops/full_like.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "training/program/reports.h"
#include "training/program/run.h"
#include "training/program/task.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::new_folder;

// ---- Signals

TEST(StopTest, TheFirstSignalIsNoted) {
  for (const int number : {SIGINT, SIGTERM}) {
    const StopSignals signals;
    EXPECT_EQ(signals.received(), 0);
    raise(number);
    EXPECT_EQ(signals.received(), number);
  }
}

TEST(StopDeathTest, TheSecondOneEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals signals;
        raise(SIGINT);
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopTest, AfterwardsSignalsAreWhatTheyWere) {
  static volatile std::sig_atomic_t own = 0;
  const auto before = std::signal(SIGINT, [](int) { own = 1; });
  { const StopSignals signals; }
  raise(SIGINT);
  EXPECT_EQ(own, 1);
  std::signal(SIGINT, before);
}

// ---- The loop

Options text_options() {
  Options options = small_options("transformer");
  options.transformer_dropout = 0;
  options.steps = 3;
  options.run_dir = new_folder() + "run";
  return options;
}

// No number is a power of two, so that a mean of means would differ.
TEST(LoopTest, AccumulatedMiniBatchesHaveTheBitsOfOneLargeMiniBatch) {
  for (const int64_t bucket : {0, 4}) {
    Options options = text_options();
    options.transformer_dropout = 0.2;
    options.bucket = bucket;
    options.batch = 15;
    options.chunks = 9;
    run_here(options);
    const RunState whole = state_in(options.run_dir);

    options.run_dir = new_folder() + "run";
    options.batch = 5;
    options.chunks = 3;
    options.accumulate = 3;
    run_here(options);
    gpipe::testing::expect_equal(state_in(options.run_dir).model, whole.model);
  }
}

// The first step of float16 has the scale 65536. A larger gradient than that of
// a mean would be infinite, and the scaler would skip the step.
TEST(LoopTest, ASumOverManyTokensDoesNotOverflowFloat16) {
  Options options = text_options();
  options.batch = 64;
  options.steps = 1;
  options.precision = "amp-float16";
  run_here(options);
  EXPECT_EQ(std::stod(logged(options.run_dir, 1, "scale")), 65536);
  const double loss = std::stod(logged(options.run_dir, 1, "loss"));

  options.run_dir = new_folder() + "run";
  options.precision = "float32";
  run_here(options);
  EXPECT_NEAR(std::stod(logged(options.run_dir, 1, "loss")), loss, 0.01);
}

TEST(LoopTest, AnyScheduleGivesTheSameBitsIfItIsToBeDeterministic) {
  Options options = text_options();
  options.chunks = 4;
  options.deterministic = true;
  options.schedule = "fill-drain";
  run_here(options);
  const RunState expected = state_in(options.run_dir);
  for (const char* schedule : {"1f1b", "interleaved-1f1b", "zbv"}) {
    options.run_dir = new_folder() + "run";
    options.schedule = schedule;
    options.stages_per_rank =
        std::string(schedule) == "interleaved-1f1b" ? 2 : 1;
    run_here(options);
    gpipe::testing::expect_equal(state_in(options.run_dir).model,
                                 expected.model);
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(LoopTest, ClippingBoundsTheStepOfPlainSgd) {
  Options options = text_options();
  options.optimizer = "sgd";
  options.momentum = 0;
  options.weight_decay = 0;
  options.lr = 1;
  options.steps = 1;
  options.clip = 1e-3;
  const auto task = make_task(options);
  torch::manual_seed(options.seed);
  const auto model = task->model();
  run_here(options, *task);
  const StateDict after = state_in(options.run_dir).model;
  double squares = 0;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor change = after[item.key()] - item.value().detach();
    squares += change.to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(squares), 1e-3, 1e-5);
}

// A layer that returns its input, but NaN from the third training step on.
class BreaksImpl : public torch::nn::Cloneable<BreaksImpl> {
 public:
  explicit BreaksImpl(std::shared_ptr<std::atomic<int>> calls)
      : torch::nn::Cloneable<BreaksImpl>("Breaks"), calls_(std::move(calls)) {}
  at::Tensor forward(const at::Tensor& x) {
    if (++*calls_ <= 4) return x;  // two steps of two micro-batches
    return x * std::numeric_limits<double>::quiet_NaN();
  }
  void reset() override {}

 private:
  std::shared_ptr<std::atomic<int>> calls_;
};
TORCH_MODULE(Breaks);

TEST(LoopTest, ALossThatIsNoNumberEndsTheRunAndNamesTheLayer) {
  Options options = text_options();
  options.balance = "4,4";
  options.checkpoint = "never";
  const auto task = make_task(options);
  TaskWith broken(*task, nullptr);
  const auto calls = std::make_shared<std::atomic<int>>(0);
  broken.change_model = [&](torch::nn::Sequential model) {
    torch::nn::Sequential with;
    const auto names = model->named_children().keys();
    for (std::size_t k = 0; k < names.size(); ++k) {
      if (k == 3) with->push_back("breaks", Breaks(calls));
      with->push_back(names[k], *(model->begin() + k));
    }
    return with;
  };
  const Ran ran = run_here(options, broken);
  EXPECT_EQ(ran.code, kNotFinite);
  const std::string line = ran.line_with("step 3: the loss is nan");
  EXPECT_NE(line.find("layer 3 (Breaks 'breaks')"), std::string::npos) << line;
  EXPECT_NE(line.find("Parameters that are not finite: none"),
            std::string::npos)
      << line;
  EXPECT_FALSE(std::filesystem::exists(options.run_dir + "/step-000000000003"));
}

TEST(LoopTest, DataThatIsNotFiniteIsNamedAsTheCause) {
  class Broken : public TaskWith {
   public:
    using TaskWith::TaskWith;
    Sample train_batch(int64_t index, Rows rows) override {
      Sample sample = TaskWith::train_batch(index, rows);
      sample.input.view(-1)[5] = std::nan("");
      return sample;
    }
  };
  Options options = small_options("unet");
  options.steps = 2;
  const auto task = make_task(options);
  Broken broken(*task, nullptr);
  const Ran ran = run_here(options, broken);
  EXPECT_EQ(ran.code, kNotFinite);
  const std::string line = ran.line_with("step 1: the loss is nan");
  EXPECT_NE(line.find(". Found first: the pipeline's input is not "
                      "finite: 1 of "),
            std::string::npos)
      << line;
  EXPECT_NE(line.find("Correct the rows of --data_dir with such numbers."),
            std::string::npos)
      << line;
}

TEST(LoopTest, Float16LeavesOutManyStepsBeforeItGivesUp) {
  Options options = text_options();
  options.precision = "amp-float16";
  options.steps = 50;
  const auto task = make_task(options);
  std::atomic<int> losses{0};
  TaskWith broken(*task, [&](const at::Tensor& output) {
    ++losses;
    return output * std::numeric_limits<double>::infinity();
  });
  const Ran ran = run_here(options, broken);
  EXPECT_EQ(ran.code, kNotFinite);
  EXPECT_NE(ran.line_with("step 20: the loss is "), "");
}

TEST(LoopTest, EvaluationIsOfAllThatWasHeldOut) {
  Options options = text_options();
  options.batch = 7;                  // does not divide the test set
  options.transformer_dropout = 0.2;  // must not act in evaluation
  const auto task = make_task(options);
  options.eval_every = 3;
  const Ran ran = run_here(options, *task);
  EXPECT_NE(ran.line_with("test perplexity"), "");
  // Compares with the plain model, which loads the weights of step 3.
  const Score score = plain_score(options.run_dir, *task, task->model());
  char expected[64];
  std::snprintf(expected, sizeof(expected), "test perplexity %.4g",
                task->metric(score));
  EXPECT_NE(ran.line_with(expected), "") << ran.line_with("test perplexity");
}

// The perplexity is exp() of the mean loss.
TEST(LoopTest, TheTrainingScoreIsThatOfTheStepsSinceTheLastEvaluation) {
  Options options = text_options();
  options.steps = 5;
  options.eval_every = 2;
  options.train_score = true;
  const Ran ran = run_here(options);
  const auto column = [&](int64_t step, const char* name) {
    return std::stod(logged(options.run_dir, step, name));
  };
  EXPECT_EQ(logged(options.run_dir, 1, "train_perplexity"), "");
  const double first = column(2, "train_perplexity");
  EXPECT_NEAR(std::log(first), (column(1, "loss") + column(2, "loss")) / 2,
              1e-6);
  EXPECT_NEAR(std::log(column(4, "train_perplexity")),
              (column(3, "loss") + column(4, "loss")) / 2, 1e-6);
  EXPECT_NEAR(std::log(column(5, "train_perplexity")), column(5, "loss"), 1e-6);
  EXPECT_NE(ran.line_with("train perplexity " + number_text(first)), "");
}

TEST(LoopTest, TheTrainingScoreOfMicroBatchesOfAnyLengthIsOfAllItems) {
  Options options = text_options();
  options.bucket = 4;
  options.steps = 1;
  options.eval_every = 1;
  options.train_score = true;
  run_here(options);
  EXPECT_NEAR(
      std::log(std::stod(logged(options.run_dir, 1, "train_perplexity"))),
      std::stod(logged(options.run_dir, 1, "loss")), 1e-6);
}

// The memory of the outputs that have been scored, and how often the optimizer
// has changed a parameter since, with the outputs and without.
struct ScoredOutputs {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
  int changes_with = 0, changes_without = 0;
} scored;

TEST(LoopTest, ScoredOutputsAreReleasedBeforeTheOptimizerNeedsMemory) {
  class Watched : public TaskWith {
   public:
    using TaskWith::TaskWith;
    Score score(const at::Tensor& output,
                const at::Tensor& target) const override {
      scored.memory.push_back(output.storage().getWeakStorageImpl());
      return TaskWith::score(output, target);
    }
  };
  Options options = text_options();
  options.steps = 1;
  options.eval_every = 1;
  options.train_score = true;
  const auto task = make_task(options);
  Watched watched(*task, nullptr);
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        // AdamW changes each parameter by this operator.
        if (std::string(function.name()) == "aten::addcdiv_") {
          ++(scored.memory.at(0).expired() ? scored.changes_without
                                           : scored.changes_with);
        }
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  run_here(options, watched);
  at::removeCallback(handle);
  EXPECT_EQ(scored.changes_with, 0);
  EXPECT_GT(scored.changes_without, 0);
  scored = {};
}

TEST(LoopTest, ATestWithoutAnItemThatCountsEndsTheRunAndNamesTheFiles) {
  class Broken : public TaskWith {
   public:
    using TaskWith::TaskWith;
    Sample test_batch(int64_t index) override {
      Sample sample = TaskWith::test_batch(index);
      sample.target = at::full_like(sample.target, -100);
      return sample;
    }
    std::vector<std::string> take_warnings() override {
      return {"skipped, number 1: a.png"};
    }
  };
  Options options = text_options();
  options.eval_every = 3;
  options.run_dir = new_folder() + "run";
  const auto task = make_task(options);
  Broken broken(*task, nullptr);
  std::vector<std::string> lines;
  EXPECT_EQ(
      gpipe::testing::value_error_of([&] {
        run(options, broken,
            [&](const std::string& line) { lines.push_back(line); });
      }),
      "nothing in the test data can be scored: no file can be read, or no "
      "label counts; correct the data, or train without evaluations "
      "(--eval_every=-1)");
  EXPECT_EQ(lines.back(), "skipped, number 1: a.png");
  EXPECT_EQ(state_in(options.run_dir).step, 3);
}

TEST(LoopTest, LayersThatAreFrozenStaySo) {
  Options options = text_options();
  options.eval_every = 1;
  const auto task = make_task(options);
  std::shared_ptr<torch::nn::Module> layer;
  std::atomic<int> frozen{0}, losses{0};
  TaskWith with(*task, [&](const at::Tensor& output) {
    ++losses;
    if (!layer->is_training()) ++frozen;
    return output;
  });
  with.change_model = [&](torch::nn::Sequential model) {
    layer = model->ptr(1);
    layer->eval();
    return model;
  };
  run_here(options, with);
  EXPECT_EQ(losses, 9);  // 3 steps of 2 micro-batches and a recompute
  EXPECT_EQ(frozen, 9);
}

TEST(LoopTest, AStepIsTraced) {
  Options options = text_options();
  const std::string file = new_folder() + "trace.json";
  options.trace = file;
  options.trace_step = 2;
  const Ran ran = run_here(options);
  EXPECT_NE(ran.line_with("the timeline of step 2 is in " + file), "");
  EXPECT_NE(gpipe::testing::read_bytes(file).find("traceEvents"),
            std::string::npos);
  EXPECT_EQ(ran.line_with("no step was traced"), "");
}

TEST(LoopTest, TheFolderOfATraceIsMadeBeforeTheFirstStep) {
  Options options = text_options();
  const std::string folder = new_folder();
  options.trace = folder + "new/trace.json";
  options.trace_step = 2;
  run_here(options);
  EXPECT_TRUE(std::filesystem::exists(options.trace));
  // The traced step never comes, so only the beginning can find the error.
  options.trace_step = 1000;
  options.trace += "/trace.json";
  const std::string error = folder + "new/trace.json: is not a folder";
  EXPECT_EQ(gpipe::testing::error_of([&] { run_here(options); }), error);
  options.trace.clear();
  options.kineto = folder + "new/trace.json/kineto.json";
  EXPECT_EQ(gpipe::testing::error_of([&] { run_here(options); }), error);
}

TEST(LoopTest, ATraceHasAllMicroBatchesOfTheStep) {
  Options options = text_options();
  options.chunks = 2;
  options.accumulate = 3;
  options.trace = new_folder() + "trace.json";
  options.trace_step = 1;
  run_here(options);
  const std::string trace = gpipe::testing::read_bytes(options.trace);
  for (const char* action : {"\"0F0\"", "\"0F5\"", "\"1B0\"", "\"1B5\""}) {
    EXPECT_NE(trace.find(action), std::string::npos) << action;
  }
  EXPECT_EQ(trace.find("\"0F6\""), std::string::npos);
}

TEST(LoopTest, AStepThatIsNotReachedIsNotTracedWhichIsSaid) {
  Options options = text_options();
  options.trace = new_folder() + "trace.json";
  options.trace_step = 4;
  EXPECT_EQ(run_here(options).line_with("no step was traced"),
            "no step was traced: --trace_step=4 counts from the start of this "
            "program, which has run 3 steps");
}

}  // namespace
}  // namespace gpipe::train_program
