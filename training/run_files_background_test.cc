#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/process.h"
#include "models/testing/files.h"
#include "training/run_files.h"
#include "training/testing/file_faults.h"
#include "training/testing/run_states.h"

#if defined(__SANITIZE_THREAD__)
// A process that exits while it saves leaves a thread behind, on purpose.
extern "C" const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
#endif

namespace gpipe {
namespace {

using testing::arm_fault;
using testing::disarm_fault;
using testing::error_of;
using ::testing::ExitedWithCode;
using testing::expect_equal;
using testing::Fault;
using testing::names_in;
using testing::read_bytes;
using testing::run_folder;
using testing::small_state;
using testing::temporary_name;

// ---- Saving in the background

using Names = std::vector<std::string>;

void zero(RunState& state) {
  for (auto& each : state.model) each.value().zero_();
  state.optimizer->parameters.at("0.weight").tensors.at("exp_avg").zero_();
  state.generators.at("cpu").zero_();
}

std::map<std::string, std::string> content_of_folder(const std::string& path) {
  std::map<std::string, std::string> content;
  for (const std::string& name : names_in(path)) {
    content[name] = read_bytes(path + "/" + name);
  }
  return content;
}

TEST(SaveInBackgroundTest, WritesTheFilesOfASave) {
  RunFiles plain(run_folder()), background(run_folder());
  plain.save(small_state(4));
  background.save_in_background(small_state(4));
  background.wait();
  const auto content = content_of_folder(plain.folder_of(4));
  EXPECT_EQ(content.size(), 4u);
  EXPECT_EQ(content_of_folder(background.folder_of(4)), content);
}

TEST(SaveInBackgroundTest, SavesTheStateOfTheCall) {
  RunFiles files(run_folder());
  RunState state = small_state(4);
  files.save_in_background(state);
  zero(state);
  expect_equal(files.load(4), small_state(4));  // waits for the save
}

TEST(SaveInBackgroundTest, WaitsForTheSaveBefore) {
  const std::string folder = run_folder();
  RunFiles files(folder, RunFilesOptions().keep(2));
  for (int64_t step = 1; step <= 4; ++step) {
    files.save_in_background(small_state(step));
    // All steps before are complete, and all but one of them are removed.
    if (step > 1)
      expect_equal(RunFiles(folder).load(step - 1), small_state(step - 1));
  }
  files.save(small_state(5));
  EXPECT_EQ(files.steps(), (std::vector<int64_t>{4, 5}));
  expect_equal(files.load(4), small_state(4));
}

TEST(SaveInBackgroundTest, IsFinishedByTheDestructor) {
  const std::string folder = run_folder();
  {
    RunFiles files(folder);
    files.save_in_background(small_state(4));
    RunFiles moved(std::move(files));
  }
  EXPECT_EQ(names_in(folder), Names{"step-000000000004"});
  expect_equal(RunFiles(folder).load(4), small_state(4));
}

TEST(SaveInBackgroundTest, AReportThatThrowsDoesNotEndTheDestructor) {
  const std::string folder = run_folder();
  bool reported = false;
  {
    RunFiles files(
        folder, RunFilesOptions().keep(1).report([&](const std::string& line) {
          reported = true;
          throw std::runtime_error(line);
        }));
    files.save(small_state(1));
    arm_fault(folder + "/" + temporary_name(2) + ".old", 1, Fault::kError, EIO);
    files.save_in_background(small_state(2));
  }
  disarm_fault();
  EXPECT_TRUE(reported);
  EXPECT_EQ(RunFiles(folder).steps().back(), 2);
}

TEST(SaveInBackgroundTest, AFailureArrivesAtTheNextCallAndLeavesTheStepBefore) {
  const std::map<std::string, void (*)(RunFiles&)> calls = {
      {"wait", [](RunFiles& files) { files.wait(); }},
      {"save", [](RunFiles& files) { files.save(small_state(3)); }},
      {"save_in_background",
       [](RunFiles& files) { files.save_in_background(small_state(3)); }},
      {"load", [](RunFiles& files) { files.load(1); }},
      {"load_latest", [](RunFiles& files) { files.load_latest(); }},
      {"resume", [](RunFiles& files) { files.resume("auto"); }},
      {"resume of none", [](RunFiles& files) { files.resume("none"); }},
      {"check_shared", [](RunFiles& files) { files.check_shared(); }},
      {"common_steps", [](RunFiles& files) { files.common_steps(); }}};
  for (const auto& each : calls) {
    SCOPED_TRACE(each.first);
    const std::string folder = run_folder();
    RunFiles files(folder);
    files.save(small_state(1));
    arm_fault(folder + "/" + temporary_name(2) + "/optimizer", 1, Fault::kError,
              ENOSPC);
    files.save_in_background(small_state(2));
    EXPECT_EQ(error_of([&] { each.second(files); }),
              folder + "/" + temporary_name(2) +
                  "/optimizer.safetensors: cannot be written: No space left on "
                  "device");
    disarm_fault();
    EXPECT_EQ(names_in(folder), Names{"step-000000000001"});
    // The error is thrown once, and the next save works.
    files.save_in_background(small_state(3));
    expect_equal(files.load_latest().value(), small_state(3));
  }
}

// Counts the operations of two saves, and makes each of them fail.
TEST(SaveInBackgroundTest, AFailureOfAnyOperationLosesNothing) {
  int errors = 0, reports = 0;
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    const std::string folder = run_folder();
    RunFiles files(folder, RunFilesOptions().keep(1).report(
                               [&](const std::string&) { ++reports; }));
    files.save(small_state(1));
    arm_fault(folder, at, Fault::kErrorOnce, EIO);
    const std::string error = error_of([&] {
      files.save_in_background(small_state(2));
      files.wait();
    });
    const auto operations = static_cast<int64_t>(disarm_fault().size());
    const RunState state = RunFiles(folder).load_latest().value();
    if (error != "no error") ++errors;
    // A step is complete once it has its name, also if the name cannot be
    // synced to the disk.
    if (state.step == 1) {
      EXPECT_NE(error, "no error");
    }
    expect_equal(state, small_state(state.step));
    if (at >= operations) {
      EXPECT_GT(operations, 20);
      EXPECT_EQ(error, "no error");
      break;
    }
  }
  EXPECT_GT(errors, 15);
  EXPECT_GT(reports, 0);
}

TEST(SaveInBackgroundTest, RefusesANegativeStepAtOnce) {
  RunFiles files(run_folder());
  EXPECT_EQ(error_of([&] { files.save_in_background(small_state(-1)); }),
            "step -1 cannot be saved: it is negative");
  files.wait();
  EXPECT_EQ(files.steps(), std::vector<int64_t>());
}

// ---- Exits of the process

constexpr int64_t kTensors = 20000;

// A state that takes long to write.
RunState many_tensors() {
  RunState state;
  state.step = 1;
  for (int64_t k = 0; k < kTensors; ++k) {
    state.model.insert(std::to_string(k), at::full({2}, k));
  }
  return state;
}

// A static object that is destroyed after those that LibTorch makes when they
// are first used. Meanwhile, the save goes on.
struct Slow {
  ~Slow() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }
};

[[noreturn]] void exit_while_saving(RunFiles& files) {
  static Slow slow;
  files.save_in_background(many_tensors());
  std::exit(7);
}

// Each test runs in a process of its own.
class RunFilesExitDeathTest : public ::testing::Test {
 protected:
  RunFilesExitDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(RunFilesExitDeathTest, ASaveThatNobodyWaitsForEndsWithTheProcess) {
  for (int round = 0; round < testing::rounds(2, 200); ++round) {
    EXPECT_EXIT(
        {
          RunFiles files(run_folder());
          exit_while_saving(files);
        },
        ExitedWithCode(7), "^$");
  }
}

TEST_F(RunFilesExitDeathTest, ASaveOfStaticRunFilesIsFinished) {
  // The other process runs this line, too.
  const std::string folder = ::testing::TempDir() + "run_of_exit_test";
  if (!::testing::internal::InDeathTestChild()) {
    std::filesystem::remove_all(folder);
  }
  EXPECT_EXIT(
      {
        static RunFiles files(folder);
        exit_while_saving(files);
      },
      ExitedWithCode(7), "^$");
  expect_equal(RunFiles(folder).load(1), many_tensors());
}

}  // namespace
}  // namespace gpipe
