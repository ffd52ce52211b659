#include "benchmarks/harness/speed.h"

#include <ATen/ATen.h>
#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::benchmarks {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::Not;

struct BadLayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (input.size(0) == 3) throw std::domain_error("three rows");
    return input;
  }
};
TORCH_MODULE(BadLayer);

SpeedBenchmark make_benchmark() {
  SpeedBenchmark benchmark;
  benchmark.program = {"toy_speed", "a toy.", {"--epochs=2"}};
  benchmark.title = "Toy";
  benchmark.published_columns = {"theirs"};
  benchmark.model = [] {
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
  small.experiments = {
      {"baseline", 0, 8, 1, {}, Checkpoint::kNever, {1.5}},
      {"bad", 2, 6, 2, {1, 2}, Checkpoint::kNever, {std::nullopt}},
      {"pipeline-2", 2, 8, 2, {1, 2}, Checkpoint::kExceptLast, {2.5}},
  };
  benchmark.paper = small;
  return benchmark;
}

// The exit code; `output` gets what was printed to stdout.
int run(std::vector<std::string> flags, std::string* output) {
  // Programs parse once and glog starts once, so each run is a process: see
  // the death tests. Here the flags are set as a command line would.
  const gflags::FlagSaver saver;
  flags.insert(flags.begin(), "toy_speed");
  std::vector<char*> argv;
  for (auto& flag : flags) argv.push_back(flag.data());
  testing::internal::CaptureStdout();
  const int code =
      run_speed(static_cast<int>(argv.size()), argv.data(), make_benchmark());
  *output = testing::internal::GetCapturedStdout();
  return code;
}

[[noreturn]] void run_and_exit(const std::vector<std::string>& flags) {
  std::string output;
  const int code = run(flags, &output);
  std::fputs(output.c_str(), stderr);
  std::exit(code);
}

// A forked child would have lost LibTorch's threads.
class SpeedDeathTest : public ::testing::Test {
 protected:
  SpeedDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(SpeedDeathTest, ARowThatFailsLeavesTheOthers) {
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--format=csv"}),
              ExitedWithCode(kFailed),
              "experiment,batch(.|\n)*baseline,8,(.|\n)*bad,6,(.|\n)*three "
              "rows(.|\n)*pipeline-2,8,2,\"1,2\",except_last,2 x "
              "[0-9]+,[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,2.500,\n");
}

TEST_F(SpeedDeathTest, ChosenRowsSucceed) {
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--experiment=pipeline-2"}),
              ExitedWithCode(kOk), "Reduced: toys, 20 samples per epoch");
}

TEST_F(SpeedDeathTest, WrongFlagsAreUsageErrors) {
  EXPECT_EXIT(run_and_exit({"--experiment=none"}), ExitedWithCode(kUsage),
              "there is no 'none'; there are baseline, bad, pipeline-2 and");
  EXPECT_EXIT(run_and_exit({"--no_such_flag"}), ExitedWithCode(kUsage),
              "no_such_flag");
  EXPECT_EXIT(run_and_exit({"--devices=cpu", "--skip_epochs=3"}),
              ExitedWithCode(kUsage), "leaves none of 3 epochs");
  EXPECT_EXIT(run_and_exit({"--format=xml"}), ExitedWithCode(kUsage),
              "expected text, markdown, json, csv");
  EXPECT_EXIT(run_and_exit({"pipeline-2"}), ExitedWithCode(kUsage),
              "unexpected argument 'pipeline-2'");
}

TEST(SpeedTest, HelpTeachesAndSucceeds) {
  std::string output;
  EXPECT_EQ(run({"--help"}, &output), kOk);
  EXPECT_THAT(output, HasSubstr("toy_speed: a toy."));
  EXPECT_THAT(output, HasSubstr("//benchmarks:toy_speed -- --epochs=2"));
  EXPECT_THAT(output, HasSubstr("--skip_epochs=-1"));
  EXPECT_THAT(output, Not(HasSubstr("--flagfile='")));
}

}  // namespace
}  // namespace gpipe::benchmarks
