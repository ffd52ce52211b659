#include "benchmarks/harness/run.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/program.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Benchmark noted_benchmark() {
  Benchmark benchmark;
  benchmark.paper.text = "images";
  benchmark.small.text = "toys";
  benchmark.paper.notes = {"Logits are large."};
  benchmark.published = {{"theirs", Figure::kSpeed}};
  benchmark.notes = {"GB are 10^9 bytes."};
  return benchmark;
}

RunOptions options_for(Mode mode) {
  RunOptions options;
  options.settings.devices = {c10::kCPU};
  options.mode = mode;
  options.samples = 20;
  options.epochs = 4;
  options.skip_epochs = 1;
  return options;
}

TEST(NotesTest, TellsTheSizesAndHowItWasMeasured) {
  RunOptions options = options_for(Mode::kMeasure);
  options.settings.seed = 7;
  options.small = true;
  EXPECT_THAT(notes_for(noted_benchmark(), options),
              AllOf(Contains("Reduced: toys."),
                    Contains(HasSubstr("of epochs 2 to 4, of 20 samples each")),
                    Contains("Seed 7."), Contains("GB are 10^9 bytes."),
                    Contains(HasSubstr("a speed-up of 1 would be")),
                    Contains(StartsWith("Published figures are of other")),
                    Not(Contains("Logits are large."))));
  options.small = false;
  options.settings.deterministic = true;
  EXPECT_THAT(
      notes_for(noted_benchmark(), options),
      AllOf(Contains("As published: images."), Contains("Logits are large."),
            Contains("Seed 7, deterministic kernels only.")));
}

TEST(NotesTest, TellsThatRowsHaveOneBatch) {
  RunOptions options = options_for(Mode::kMeasure);
  options.experiments.resize(2);
  const auto one_batch = Contains(HasSubstr("The same mini-batch"));
  EXPECT_THAT(notes_for(noted_benchmark(), options), one_batch);
  options.experiments[1].batch_size = 8;
  EXPECT_THAT(notes_for(noted_benchmark(), options), Not(one_batch));
  // Rows with different bases have different mini-batches.
  options.rows.same_batch = true;
  EXPECT_THAT(notes_for(noted_benchmark(), options),
              AllOf(Not(one_batch),
                    Contains(HasSubstr("has the mini-batch of its base"))));
}

TEST(NotesTest, AMemoryTableSaysNothingOnSpeeds) {
  Benchmark benchmark = noted_benchmark();
  benchmark.table_kind = TableKind::kMemory;
  const auto notes = notes_for(benchmark, options_for(Mode::kMeasure));
  EXPECT_THAT(notes,
              AllOf(Contains("On CPUs: all partitions share one memory."),
                    Not(Contains(HasSubstr("speed")))));
  // A memory table does not show the published speeds.
  EXPECT_THAT(notes, Not(Contains("GB are 10^9 bytes.")));
  benchmark.published = {{"theirs", Figure::kTotalBytes}};
  EXPECT_THAT(notes_for(benchmark, options_for(Mode::kMeasure)),
              Contains("GB are 10^9 bytes."));
}

TEST(NotesTest, TellsThatPartitionsShareADevice) {
  RunOptions options = options_for(Mode::kMeasure);
  const auto shared = Contains(HasSubstr("Partitions share a device"));
  options.settings.devices = {{c10::kCUDA, 0}, {c10::kCUDA, 1}};
  EXPECT_THAT(notes_for(noted_benchmark(), options), Not(shared));
  options.settings.devices = {{c10::kCUDA, 0}, {c10::kCUDA, 0}};
  EXPECT_THAT(notes_for(noted_benchmark(), options), shared);
}

TEST(NotesTest, NumbersThatAreNotMeasuredAreCalledSo) {
  EXPECT_THAT(notes_for(noted_benchmark(), options_for(Mode::kSimulate)),
              Contains(StartsWith("Simulated:")));
  EXPECT_THAT(notes_for(noted_benchmark(), options_for(Mode::kDryRun)),
              AllOf(Contains(StartsWith("Dry-run:")),
                    Contains(HasSubstr("Model memory:"))));
}

struct BadLayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (input.size(0) == 3) throw std::domain_error("three rows");
    return input;
  }
};
TORCH_MODULE(BadLayer);

// Returns a benchmark whose model has 30 parameters in three layers. The second
// layer fails for three rows.
Benchmark run_benchmark() {
  Benchmark benchmark;
  benchmark.program = {"toy_speed", "a toy.", {"--epochs=2"}};
  benchmark.title = "Toy";
  benchmark.published = {{"theirs", Figure::kSpeed},
                         {"their total", Figure::kTotalBytes}};
  benchmark.model = [](const Experiment&) {
    return torch::nn::Sequential(torch::nn::Linear(4, 4), BadLayer(),
                                 torch::nn::Linear(4, 2));
  };
  benchmark.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  };
  Workload& small = benchmark.small;
  small.text = "toys";
  small.samples_per_epoch = 20;
  small.epochs = 3;
  small.skip_epochs = 1;
  small.input = [](int64_t rows) { return at::ones({rows, 4}); };
  small.target = [](int64_t rows) { return at::ones({rows, 2}); };
  constexpr auto kNever = Checkpoint::kNever;
  constexpr auto kExceptLast = Checkpoint::kExceptLast;
  small.experiments = {
      {"baseline", 0, 8, 1, {}, kNever, {1.5}, {}, ""},
      {"bad", 2, 6, 2, {1, 2}, kNever, {std::nullopt}, {}, ""},
      {"pipeline-2", 2, 8, 2, {1, 2}, kExceptLast, {2.5}, {}, ""},
  };
  benchmark.paper = small;
  return benchmark;
}

Benchmark make_memory_benchmark() {
  Benchmark benchmark = run_benchmark();
  benchmark.table_kind = TableKind::kMemory;
  return benchmark;
}

// Runs the benchmark with `flags` and returns the exit code. Sets `output` to
// the text on stdout. Flags can be parsed and glog can be started only once per
// process, so each run needs a process of its own: see the death tests.
int run_with(const Benchmark& benchmark, std::vector<std::string> flags,
             std::string* output) {
  const gflags::FlagSaver saver;
  flags.insert(flags.begin(), "toy_speed");
  std::vector<char*> argv;
  for (auto& flag : flags) argv.push_back(flag.data());
  testing::internal::CaptureStdout();
  const int code =
      run_benchmark(static_cast<int>(argv.size()), argv.data(), benchmark);
  *output = testing::internal::GetCapturedStdout();
  return code;
}

[[noreturn]] void run_and_exit(const Benchmark& benchmark,
                               const std::vector<std::string>& flags) {
  std::string output;
  const int code = run_with(benchmark, flags, &output);
  std::fputs(output.c_str(), stderr);
  std::exit(code);
}

[[noreturn]] void run_and_exit(const std::vector<std::string>& flags) {
  run_and_exit(run_benchmark(), flags);
}

std::string read_back(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Death tests in new processes: a forked child would lack LibTorch's threads.
class RunDeathTest : public ::testing::Test {
 protected:
  RunDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(RunDeathTest, ARowThatFailsLeavesTheOthers) {
  EXPECT_EXIT(
      run_and_exit({"--devices=cpu", "--format=csv"}), ExitedWithCode(kFailed),
      "# cpu: (.|\n)*experiment,batch(.|\n)*baseline,8,(.|\n)*bad,6,(.|\n)*"
      "three rows(.|\n)*pipeline-2,8,2,\"1,2\",except_last,measured,cpu x 2,2 "
      "x [0-9]+,[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,[0-9]+,2.500,\n");
}

TEST_F(RunDeathTest, AValueErrorIsThatOfAFlag) {
  const auto run = [](int argc, char** argv) {
    std::exit(run_program(argc, argv, {"toy", "a toy.", {}}, []() -> int {
      TORCH_CHECK_VALUE(false, "--limit=3: too small");
    }));
  };
  char name[] = "toy";
  char* argv[] = {name, nullptr};
  EXPECT_EXIT(run(1, argv), ExitedWithCode(kUsage),
              "toy: --limit=3: too small");
}

TEST_F(RunDeathTest, ChosenRowsSucceed) {
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--experiment=pipeline-2"}),
              ExitedWithCode(kOk), "Reduced: toys\\.(.|\n)*libtorch: 2");
}

TEST_F(RunDeathTest, TheControlComesBehindTheBaseline) {
  EXPECT_EXIT(
      run_and_exit({"--devices=cpu", "--experiment=baseline,pipeline-2",
                    "--control", "--format=csv"}),
      ExitedWithCode(kOk),
      "\nbaseline,8,(.|\n)*\ncheckpoint-only,8,2,3,except_last,measured,(.|"
      "\n)*\npipeline-2,8,2,");
}

TEST_F(RunDeathTest, MemoryIsDryRunWithoutAccelerators) {
  // The partitions have 4 x 4 + 4 and 4 x 2 + 2 parameters.
  EXPECT_EXIT(run_and_exit(
                  make_memory_benchmark(),
                  {"--devices=cpu", "--experiment=pipeline-2", "--format=csv"}),
              ExitedWithCode(kOk),
              "model memory bytes(.|\n)*pipeline-2,8,2,\"1,2\",except_last,"
              "dry-run,30,240,");
}

TEST_F(RunDeathTest, MemoryIsMeasuredWhereItIsAskedFor) {
  EXPECT_EXIT(run_and_exit(make_memory_benchmark(),
                           {"--devices=cpu", "--experiment=pipeline-2",
                            "--mode=measure", "--format=csv"}),
              ExitedWithCode(kOk),
              "pipeline-2,8,2,\"1,2\",except_last,measured,cpu x 2,2 x "
              "[0-9]+,30,240,");
}

TEST_F(RunDeathTest, SimulatedRowsHaveTimelines) {
  const std::string path = ::testing::TempDir() + "/toy_timeline.json";
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--experiment=pipeline-2",
                            "--mode=simulate", "--profile_rows=2",
                            "--profile_seconds=0.01", "--timeline=" + path,
                            "--format=csv"}),
              ExitedWithCode(kOk),
              "pipeline-2,8,2,\"1,2\",except_last,"
              "simulated,[0-9.]+,,[0-9.]+,");
  EXPECT_THAT(read_back(path), HasSubstr("pipeline-2, simulated"));
}

TEST_F(RunDeathTest, ADryRunCutsByParametersWhereNoBalanceIsGiven) {
  // The layers have 20, 0 and 10 parameters.
  EXPECT_EXIT(
      run_and_exit({"--devices=cpu", "--experiment=pipeline-2",
                    "--balance=auto", "--mode=dry_run", "--format=csv"}),
      ExitedWithCode(kOk),
      "# Balances that were not given are cut by bytes(.|\n)*"
      "pipeline-2,8,2,\"1,2\",except_last,dry-run,30,240,");
}

TEST_F(RunDeathTest, OneEpochIsMeasuredWithoutWarmUp) {
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--experiment=baseline",
                            "--epochs=1", "--format=csv"}),
              ExitedWithCode(kOk), "of epochs 1 to 1, ");
}

TEST_F(RunDeathTest, AnEpochHasTheSamplesOfTheFlag) {
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--experiment=baseline",
                            "--samples=16", "--format=csv"}),
              ExitedWithCode(kOk), "of epochs 2 to 3, of 16 samples each");
}

TEST_F(RunDeathTest, AResultThatCannotBeWrittenIsAFailure) {
  const auto run_to_full_disk = [] {
    std::string program = "toy_speed", env = "--env";
    std::vector<char*> argv{program.data(), env.data()};
    if (!std::freopen("/dev/full", "w", stdout)) std::exit(kOk);
    std::exit(run_benchmark(static_cast<int>(argv.size()), argv.data(),
                            run_benchmark()));
  };
  EXPECT_EXIT(run_to_full_disk(), ExitedWithCode(kFailed),
              "cannot be written to stdout");
}

TEST_F(RunDeathTest, PlotsWhatItFound) {
  const std::string path = ::testing::TempDir() + "/toy_plot.svg";
  EXPECT_EXIT(run_and_exit(
                  {"--devices=cpu", "--experiment=baseline", "--plot=" + path}),
              ExitedWithCode(kOk), "baseline");
  EXPECT_THAT(
      read_back(path),
      AllOf(HasSubstr("<svg"), HasSubstr(">baseline, gpipe, measured: 1.00<")));
}

TEST_F(RunDeathTest, WrongFlagsAreUsageErrors) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--experiment=none"},
       "there is no 'none'; there are baseline, bad, pipeline-2 and"},
      {{"--no_such_flag"}, "no_such_flag"},
      {{"--devices=cpu", "--skip_epochs=3"}, "leaves none of 3 epochs"},
      {{"--skip_epochs=-2"}, "--skip_epochs=-2: expected"},
      {{"--devices=cpu", "--samples=7"},
       "an epoch has 7 samples, but baseline has a mini-batch of 8"},
      {{"--devices=cpu", "--batch_size=21"},
       "an epoch has 20 samples, but baseline"},
      {{"--devices=cpu", "--samples=-1"}, "an epoch has -1 samples"},
      {{"--link_latency=nan"}, "--link_latency=nan: expected"},
      {{"--device_speed=inf"}, "--device_speed=inf: expected"},
      {{"--format=xml"}, "expected text, markdown, json, csv"},
      {{"pipeline-2"}, "unexpected argument 'pipeline-2'"},
      {{"--plot=/no/such/folder/a.svg"}, "cannot be written"},
      {{"--devices=cpu", "--timeline=" + ::testing::TempDir() + "/toy.svg"},
       "--timeline is for --mode=simulate"}};
  for (const auto& [flags, text] : wrong) {
    EXPECT_EXIT(run_and_exit(flags), ExitedWithCode(kUsage), text);
  }
  EXPECT_EXIT(run_and_exit(make_memory_benchmark(), {"--samples=16"}),
              ExitedWithCode(kUsage), "--samples=16 is for speed tables");
  EXPECT_EXIT(run_and_exit(make_memory_benchmark(), {"--mode=simulate"}),
              ExitedWithCode(kUsage), "use --mode=dry_run");
}

TEST_F(RunDeathTest, ABalanceThatDoesNotFitIsAUsageErrorInEveryMode) {
  for (const char* mode : {"measure", "simulate", "dry_run"}) {
    EXPECT_EXIT(run_and_exit({"--devices=cpu", "--balance=1,3",
                              std::string("--mode=") + mode}),
                ExitedWithCode(kUsage),
                "--balance=1,3: the model has 3 layers");
  }
}

TEST(RunTest, HelpTeachesAndSucceeds) {
  std::string output;
  EXPECT_EQ(run_with(run_benchmark(), {"--help"}, &output), kOk);
  EXPECT_THAT(
      output,
      AllOf(HasSubstr("toy_speed: a toy."),
            HasSubstr("//benchmarks:toy_speed -- --epochs=2"),
            HasSubstr("\nExperiments:\n  baseline, bad, pipeline-2\n"),
            HasSubstr("--link_latency=1e-05\n"), HasSubstr("--skip_epochs=-1"),
            HasSubstr("--mode=auto"), Not(HasSubstr("--flagfile='"))));
}

TEST_F(RunDeathTest, ThePlanIsPrintedAndNothingRun) {
  // If the experiment "bad" ran, it would fail.
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--dry_run", "--format=csv"}),
              ExitedWithCode(kOk),
              "bad,2,6,2,\"1,2\",never,measured,cpu x 2,,\n");
}

TEST_F(RunDeathTest, TheEnvironmentIsPrintedAlone) {
  EXPECT_EXIT(run_and_exit({"--env"}), ExitedWithCode(kOk), "cpu: (.|\n)*date");
}

}  // namespace
}  // namespace gpipe::benchmarks
