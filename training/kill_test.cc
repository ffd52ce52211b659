// Kills a training run at random times and at every file operation, and resumes
// it. Its final parameters must be bitwise equal to those of an uninterrupted
// run.
//
// This process never trains. It forks children that train.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "training/learning_rate.h"
#include "training/run_files.h"
#include "training/testing/file_faults.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using testing::arm_fault;
using testing::disarm_fault;
using testing::Fault;
using testing::new_folder;
using testing::read_bytes;
using testing::write_bytes;

struct Setting {
  std::string optimizer;
  int64_t steps, every;  // a step is saved after `every` steps
  int64_t keep;
  bool in_background = false;
};

std::unique_ptr<optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<at::Tensor>& parameters) {
  if (name == "SGD") {
    return std::make_unique<optim::SGD>(parameters,
                                        optim::SGDOptions(0.1).momentum(0.9));
  }
  return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(0.05));
}

// Notes beside `result` that step `step` has been saved.
void note_saved(const std::string& result, int64_t step) {
  std::ofstream(result + ".saved", std::ios::app) << step << std::endl;
}

// Expects that the last step that was noted, or a later one, is in `folder`.
void expect_nothing_lost(const std::string& folder, const std::string& result) {
  std::ifstream file(result + ".saved");
  int64_t saved = 0;
  for (int64_t step = 0; file >> step;) saved = step;
  if (saved == 0) return;
  const auto steps = RunFiles(folder).steps();
  ASSERT_FALSE(steps.empty()) << "step " << saved << " is lost";
  ASSERT_GE(steps.back(), saved);
}

// Trains to the end from the newest step in `folder`, and writes parameters and
// buffers to `result`. The result depends on every part of the state, because
// of dropout, buffers, random data and a learning rate schedule.
void train(const Setting& setting, const std::string& folder,
           const std::string& result) {
  at::set_num_threads(1);
  // A run that has steps must load them.
  at::manual_seed(RunFiles(folder).steps().empty() ? 1 : 2);
  nn::Sequential model(nn::Linear(6, 16), nn::BatchNorm1d(16), nn::Dropout(0.3),
                       nn::Linear(16, 2));
  const auto optimizer = make_optimizer(setting.optimizer, model->parameters());
  const LearningRates rates(
      LearningRateSchedule("warmup:3,cosine:20,floor:0.1"), *optimizer);
  RunFiles files(
      folder,
      RunFilesOptions().keep(setting.keep).report([](const std::string& line) {
        // A kill must not damage any step, so nothing may be reported.
        std::fprintf(stderr, "%s\n", line.c_str());
        std::_Exit(3);
      }));
  int64_t step = 0;
  if (auto state = files.resume("auto")) {
    load_state_dict(*model, state->model);
    load_optimizer_state(*optimizer, *state->optimizer,
                         model->named_parameters());
    set_generator_states(state->generators);
    step = state->step;
  }
  while (step < setting.steps) {
    rates.set(*optimizer, step);
    const at::Tensor input = at::randn({8, 6}), target = at::randn({8, 2});
    optimizer->zero_grad();
    at::mse_loss(model->forward(input), target).backward();
    optimizer->step();
    ++step;
    if (step % setting.every != 0) continue;
    RunState state;
    state.step = step;
    state.model = state_dict(*model);
    state.optimizer = optimizer_state(*optimizer, model->named_parameters());
    state.generators = generator_states();
    state.metadata["learning_rate"] = rates.schedule().spec();
    if (setting.in_background) {
      files.save_in_background(state);
      // It has waited for the step before.
      if (step > setting.every) note_saved(result, step - setting.every);
    } else {
      files.save(state);
      note_saved(result, step);
    }
  }
  files.wait();
  write_safetensors(result, state_dict(*model));
}

// Starts a child that runs `body`. The exit code is 2 if `body` throws.
pid_t start(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(2);
  }
  std::_Exit(0);
}

// Waits for a child and returns its status from waitpid().
int wait_for(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

bool killed(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

bool finished(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Returns the result file of an uninterrupted run, and its duration in seconds.
std::pair<std::string, double> undisturbed(const Setting& setting) {
  const std::string folder = new_folder();
  const auto before = std::chrono::steady_clock::now();
  const int status = wait_for(
      start([&] { train(setting, folder + "run", folder + "result"); }));
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - before;
  EXPECT_TRUE(finished(status)) << status;
  return {read_bytes(folder + "result"), passed.count()};
}

// How a run trains and saves.
struct Way {
  std::string name, optimizer;
  bool in_background;
};

class KillTest : public ::testing::TestWithParam<Way> {};

TEST_P(KillTest, AtEveryFileOperationLosesNothing) {
  const Setting setting{GetParam().optimizer, /*steps=*/5, /*every=*/2,
                        /*keep=*/1, GetParam().in_background};
  const std::string expected = undisturbed(setting).first;
  ASSERT_FALSE(expected.empty());

  const std::string counted = new_folder();
  ASSERT_TRUE(finished(wait_for(start([&] {
    arm_fault(counted + "run", 0, Fault::kNone);
    train(setting, counted + "run", counted + "result");
    std::string lines;
    for (const std::string& each : disarm_fault()) lines += each + "\n";
    write_bytes(counted + "operations", lines);
  }))));
  std::istringstream lines(read_bytes(counted + "operations"));
  std::vector<std::string> operations;
  for (std::string line; std::getline(lines, line);) operations.push_back(line);
  EXPECT_GT(operations.size(), 90u);  // two steps saved, one removed

  int kills = 0;
  for (std::size_t at = 0; at < operations.size(); ++at) {
    const bool is_write = operations[at].compare(0, 6, "write ") == 0;
    for (const Fault fault : {Fault::kKill, Fault::kKillHalf}) {
      if (fault == Fault::kKillHalf && !is_write) continue;
      const std::string folder = new_folder();
      const auto run = [&] {
        train(setting, folder + "run", folder + "result");
      };
      const int status = wait_for(start([&] {
        arm_fault(folder + "run", static_cast<int64_t>(at), fault);
        run();
      }));
      ASSERT_TRUE(killed(status)) << operations[at] << ": " << status;
      expect_nothing_lost(folder + "run", folder + "result");
      ++kills;
      ASSERT_TRUE(finished(wait_for(start(run)))) << operations[at];
      ASSERT_EQ(read_bytes(folder + "result"), expected) << operations[at];
      std::filesystem::remove_all(folder);
    }
  }
  std::printf("killed at %d file operations, %d times\n",
              static_cast<int>(operations.size()), kills);
}

TEST_P(KillTest, AtRandomMomentsLosesNothing) {
  const char* const wanted = std::getenv("GPIPE_KILLS");
  const int wanted_kills = wanted ? std::atoi(wanted) : 20;
  const Setting setting{GetParam().optimizer, /*steps=*/40, /*every=*/2,
                        /*keep=*/2, GetParam().in_background};
  const auto [expected, seconds] = undisturbed(setting);
  ASSERT_FALSE(expected.empty());
  std::mt19937 random(5);
  // Shorter than a run, so that most runs are killed several times.
  std::uniform_real_distribution<double> moment(0, 0.7 * seconds);
  int kills = 0, runs = 0, resumed = 0;
  while (kills < wanted_kills) {
    const std::string folder = new_folder();
    ++runs;
    for (;;) {
      const pid_t child =
          start([&] { train(setting, folder + "run", folder + "result"); });
      if (kills < wanted_kills) {
        std::this_thread::sleep_for(
            std::chrono::duration<double>(moment(random)));
        kill(child, SIGKILL);
      }
      const int status = wait_for(child);
      if (finished(status)) break;
      ASSERT_TRUE(killed(status)) << status;
      ++kills;
      expect_nothing_lost(folder + "run", folder + "result");
      if (!RunFiles(folder + "run").steps().empty()) ++resumed;
    }
    ASSERT_EQ(read_bytes(folder + "result"), expected);
    std::filesystem::remove_all(folder);
  }
  std::printf(
      "killed %d times in %d runs, %d times with a step to resume from\n",
      kills, runs, resumed);
}

INSTANTIATE_TEST_SUITE_P(
    , KillTest,
    ::testing::Values(Way{"SGD", "SGD", false}, Way{"AdamW", "AdamW", false},
                      Way{"AdamWInBackground", "AdamW", true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpipe
