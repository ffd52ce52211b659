// A process ends with its own status while a save in the background runs.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "gpipe/testing/process.h"
#include "models/testing/files.h"
#include "training/run_files.h"
#include "training/testing/run_states.h"

namespace gpipe {
namespace {

using ::testing::ExitedWithCode;
using testing::expect_equal;
using testing::new_folder;

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
          RunFiles files(new_folder() + "run");
          exit_while_saving(files);
        },
        ExitedWithCode(7), "^$");
  }
}

TEST_F(RunFilesExitDeathTest, ASaveOfStaticRunFilesIsFinished) {
  // The other process runs this line, too.
  const std::string folder = ::testing::TempDir() + "run_of_exit_test";
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
