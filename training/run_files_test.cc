#include "training/run_files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/bytes/crc32c.h"
#include "training/testing/file_faults.h"
#include "training/testing/run_states.h"
#include "weights/safetensors.h"
#include "weights/testing/files.h"

namespace gpipe {
namespace {

using testing::arm_fault;
using testing::disarm_fault;
using testing::error_of;
using testing::expect_equal;
using testing::Fault;
using testing::names_in;
using testing::names_of;
using testing::new_folder;
using testing::read_bytes;
using testing::value_error_of;
using testing::write_bytes;
using Lines = std::vector<std::string>;
using Steps = std::vector<int64_t>;

at::Tensor numbers(int64_t count, double first) {
  return at::arange(first, first + static_cast<double>(count),
                    at::TensorOptions(at::kFloat));
}

// Returns a state of a few hundred bytes that differs for each step.
RunState small_state(int64_t step) {
  const auto real = static_cast<double>(step);
  RunState state;
  state.step = step;
  state.model.insert("0.weight", numbers(4, real).view({2, 2}));
  state.model.insert("0.bias", numbers(2, real + 0.5));
  state.model.insert("1.count", at::full({}, step));
  OptimizerState& optimizer = state.optimizer.emplace();
  optimizer.type = "Adam";
  optimizer.groups = {{{"lr", 0.1}, {"beta1", 0.9}}, {{"lr", real}}};
  optimizer.parameters["0.weight"] = {
      0, {{"step", step}}, {{"exp_avg", numbers(4, -real).view({2, 2})}}};
  optimizer.parameters["0.bias"] = {1, {}, {}};
  state.generators["cpu"] = at::full({5}, step, at::TensorOptions(at::kByte));
  state.words = {{"learning_rate", "warmup:5"}, {"epoch", "3"}};
  return state;
}

// RunFiles that store the lines that they report.
struct Trial {
  explicit Trial(std::string path, int64_t keep = 2)
      : folder(std::move(path)),
        files(folder,
              RunFilesOptions().keep(keep).report(
                  [this](const std::string& line) { lines.push_back(line); })) {
  }

  Lines take_lines() { return std::exchange(lines, {}); }

  // Loads the newest step and returns its number, or -1 if there is none.
  // Expects that the state is bitwise equal to the saved one.
  int64_t latest() {
    const auto state = files.load_latest();
    if (!state) return -1;
    expect_equal(*state, small_state(state->step));
    return state->step;
  }

  const std::string folder;
  Lines lines;
  RunFiles files;
};

// Returns a new path without a "/" at its end.
std::string run_folder() { return new_folder() + "run"; }

TEST(RunFilesTest, GivesBackEveryBit) {
  Trial run(run_folder() + "/a/b");  // creates the missing folders
  RunState state = small_state(7);
  state.model = testing::every_kind_of_tensor(/*for_safetensors=*/true);
  const double infinity = std::numeric_limits<double>::infinity();
  state.optimizer->groups[0] = {{"third", 1.0 / 3},
                                {"least", 4.9e-324},
                                {"inf", infinity},
                                {"minus inf", -infinity}};
  state.words["ünïcode \"quoted\"\n"] = "\t\\";
  run.files.save(state);
  const auto loaded = run.files.load_latest();
  ASSERT_TRUE(loaded);
  expect_equal(*loaded, state);
  EXPECT_EQ(run.lines, Lines());

  RunState bare;
  bare.step = 8;
  run.files.save(bare);
  expect_equal(run.files.load(8), bare);
  EXPECT_EQ(names_in(run.files.folder_of(8)), Lines{"manifest.json"});
}

TEST(RunFilesTest, HasAFolderForAStepWithFilesThatOthersRead) {
  Trial run(run_folder());
  EXPECT_EQ(run.latest(), -1);  // the folder does not exist
  run.files.save(small_state(120));
  EXPECT_EQ(names_in(run.folder), Lines{"step-000000000120"});
  const std::string step = run.folder + "/step-000000000120";
  EXPECT_EQ(step, run.files.folder_of(120));
  EXPECT_EQ(names_in(step),
            (Lines{"generators.safetensors", "manifest.json",
                   "model.safetensors", "optimizer.safetensors"}));
  const auto model = read_safetensors(step + "/model.safetensors").tensors;
  EXPECT_EQ(names_of(model), (Lines{"0.weight", "0.bias", "1.count"}));
  expect_equal(model, small_state(120).model);
  EXPECT_EQ(names_of(read_safetensors(step + "/optimizer.safetensors").tensors),
            Lines{"exp_avg:0.weight"});
}

// Writes in place, which is much faster than writing a new file.
void write_byte(const std::string& path, std::size_t at, int byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(byte));
}

TEST(RunFilesTest, EveryFlippedByteIsNoticedAndTheStepBeforeIsTaken) {
  Trial run(run_folder());
  run.files.save(small_state(100));
  run.files.save(small_state(120));
  const std::string step = run.files.folder_of(120) + "/";
  int64_t bytes_in_all = 0;
  for (const std::string& name : names_in(step)) {
    const std::string bytes = read_bytes(step + name);
    for (std::size_t k = 0; k < bytes.size(); ++k) {
      for (const int flip : {1 << (k % 8), 0x20, 0xFF}) {
        write_byte(step + name, k, bytes[k] ^ flip);
        ASSERT_EQ(run.latest(), 100) << name << " " << k << " " << flip;
        ASSERT_EQ(run.take_lines().size(), 1u);
      }
      write_byte(step + name, k, bytes[k]);
      ++bytes_in_all;
    }
  }
  EXPECT_EQ(run.latest(), 120);
  EXPECT_GT(bytes_in_all, 2000);
}

TEST(RunFilesTest, EveryTruncationAndEveryByteMoreIsNoticed) {
  Trial run(run_folder());
  run.files.save(small_state(100));
  run.files.save(small_state(120));
  const std::string step = run.files.folder_of(120) + "/";
  for (const std::string& name : names_in(step)) {
    const std::string bytes = read_bytes(step + name);
    for (std::size_t size = bytes.size(); size-- > 0;) {
      std::filesystem::resize_file(step + name, size);
      ASSERT_EQ(run.latest(), 100) << name << " " << size;
    }
    for (const char* more : {"\n", " ", "a"}) {
      write_bytes(step + name, bytes + more);
      ASSERT_EQ(run.latest(), 100) << name;
    }
    std::filesystem::remove(step + name);
    ASSERT_EQ(run.latest(), 100) << name;
    write_bytes(step + name, bytes);
  }
  EXPECT_EQ(run.latest(), 120);
}

TEST(RunFilesTest, SaysWhatIsDamagedAndWhatItTriesNext) {
  Trial run(run_folder(), /*keep=*/3);
  for (const int64_t step : {80, 100, 120}) run.files.save(small_state(step));
  const std::string model = run.files.folder_of(120) + "/model.safetensors";
  const std::string bytes = read_bytes(model);
  const auto damaged = [&](std::size_t at) {
    std::string result = bytes;
    result[at] = static_cast<char>(result[at] ^ 4);
    return result;
  };
  const auto lines_with = [&](const std::string& now) {
    write_bytes(model, now);
    run.latest();
    return run.take_lines();
  };
  const std::string size = std::to_string(bytes.size());
  EXPECT_EQ(lines_with(bytes + "1"),
            Lines{"step 120 is damaged: model.safetensors has " +
                  std::to_string(bytes.size() + 1) + " bytes, " + size +
                  " expected; trying step 100"});
  EXPECT_EQ(lines_with(damaged(20)),
            Lines{"step 120 is damaged: model.safetensors has a changed "
                  "header; trying step 100"});
  EXPECT_EQ(lines_with(damaged(bytes.size() - 1)),
            Lines{"step 120 is damaged: model.safetensors has changed in "
                  "'0.bias'; trying step 100"});
  std::filesystem::remove(model);
  std::filesystem::remove(run.files.folder_of(100) + "/manifest.json");
  write_bytes(run.files.folder_of(80) + "/manifest.json", "{}");
  EXPECT_EQ(run.latest(), -1);
  EXPECT_EQ(
      run.take_lines(),
      (Lines{"step 120 is damaged: " + model +
                 ": cannot be read: No such file or directory; trying step 100",
             "step 100 is damaged: " + run.files.folder_of(100) +
                 "/manifest.json: cannot be read: No such file or directory; "
                 "trying step 80",
             "step 80 is damaged: manifest.json has 2 bytes and is cut off; "
             "there is none before it"}));
}

TEST(RunFilesTest, AStepUnderTheNameOfAnotherIsDamaged) {
  Trial run(run_folder());
  run.files.save(small_state(5));
  std::filesystem::rename(run.files.folder_of(5), run.files.folder_of(6));
  EXPECT_EQ(run.latest(), -1);
  EXPECT_EQ(run.take_lines(),
            Lines{"step 6 is damaged: manifest.json is that of step 5; there "
                  "is none before it"});
}

TEST(RunFilesTest, WhatItDoesNotKnowIsLeftAlone) {
  Trial run(run_folder(), /*keep=*/1);
  run.files.save(small_state(5));
  const std::string step = run.files.folder_of(5) + "/";
  write_bytes(step + "notes.txt", "mine");
  std::filesystem::create_directory(run.folder + "/step-7");
  std::filesystem::create_directory(run.folder + "/step-00000000000x");
  write_bytes(run.folder + "/.step-000000000004.tmp-host-x", "");
  EXPECT_EQ(run.files.steps(), Steps{5});
  EXPECT_EQ(run.latest(), 5);
  run.files.save(small_state(6));
  EXPECT_EQ(names_in(run.folder),
            (Lines{".step-000000000004.tmp-host-x", "step-000000000006",
                   "step-00000000000x", "step-7"}));
  EXPECT_EQ(run.lines, Lines());
}

TEST(RunFilesTest, KeepsTheLastStepsThatAreWhole) {
  Trial run(run_folder(), /*keep=*/2);
  for (const int64_t step : {1, 2, 3}) run.files.save(small_state(step));
  EXPECT_EQ(run.files.steps(), (Steps{2, 3}));
  write_bytes(run.files.folder_of(3) + "/model.safetensors", "short");
  run.files.save(small_state(4));
  EXPECT_EQ(run.files.steps(), (Steps{2, 3, 4}));  // 3 does not count
  run.files.save(small_state(5));
  EXPECT_EQ(run.files.steps(), (Steps{4, 5}));
}

TEST(RunFilesTest, StepsAfterTheOneSavedStay) {
  Trial run(run_folder(), /*keep=*/1);
  run.files.save(small_state(9));
  run.files.save(small_state(3));
  EXPECT_EQ(run.files.steps(), (Steps{3, 9}));
  run.files.save(small_state(4));
  EXPECT_EQ(run.files.steps(), (Steps{4, 9}));
}

TEST(RunFilesTest, ASavedStepIsReplaced) {
  Trial run(run_folder(), /*keep=*/1);
  RunState state = small_state(3);
  run.files.save(state);
  state.words["epoch"] = "4";
  run.files.save(state);
  EXPECT_EQ(names_in(run.folder), Lines{"step-000000000003"});
  expect_equal(run.files.load(3), state);
}

TEST(RunFilesTest, ASavedStepIsReplacedWhereNamesCannotBeExchanged) {
  Trial run(run_folder(), /*keep=*/1);
  RunState state = small_state(3);
  run.files.save(state);
  arm_fault(run.folder, 0, Fault::kNone);
  run.files.save(state);
  const Lines operations = disarm_fault();
  const auto exchange = std::find(operations.begin(), operations.end(),
                                  "exchange step-000000000003");
  ASSERT_NE(exchange, operations.end());

  state.words["epoch"] = "4";
  arm_fault(run.folder, exchange - operations.begin(), Fault::kErrorOnce,
            EINVAL);  // the error on NFS
  run.files.save(state);
  disarm_fault();
  EXPECT_EQ(names_in(run.folder), Lines{"step-000000000003"});
  expect_equal(run.files.load(3), state);
}

TEST(RunFilesTest, LoadsWhatIsAskedFor) {
  Trial run(run_folder());
  run.files.save(small_state(3));
  const auto state = run.files.load(3, RunFiles::Names{"0.bias", "9.bias"});
  EXPECT_EQ(names_of(state.model), Lines{"0.bias"});
  ASSERT_EQ(state.optimizer->parameters.size(), 1u);
  EXPECT_EQ(state.optimizer->parameters.count("0.bias"), 1u);
  EXPECT_EQ(state.generators.size(), 1u);
}

TEST(RunFilesTest, ResumesAsAFlagSays) {
  Trial run(run_folder());
  EXPECT_FALSE(run.files.resume("auto"));
  run.files.save(small_state(3));
  run.files.save(small_state(40));
  EXPECT_FALSE(run.files.resume("none"));
  EXPECT_FALSE(run.files.resume(""));
  EXPECT_EQ(run.files.resume("auto")->step, 40);
  EXPECT_EQ(run.files.resume("3")->step, 3);
  EXPECT_EQ(value_error_of([&] { run.files.resume("4"); }),
            run.folder + " has no step 4; its steps are [3, 40]");
  EXPECT_EQ(value_error_of([&] { run.files.resume("newest"); }),
            "resume is 'newest', should be auto, none or the number of a step");
  write_bytes(run.files.folder_of(40) + "/manifest.json", "");
  EXPECT_EQ(value_error_of([&] { run.files.resume("40"); }),
            "step 40 is damaged: manifest.json has 0 bytes and is cut off; the "
            "steps in " +
                run.folder + " are [3, 40]");
}

TEST(RunFilesTest, ALaterVersionOfTheFormatIsAnErrorAndNotPassedOver) {
  Trial run(run_folder());
  run.files.save(small_state(3));
  run.files.save(small_state(4));
  const std::string path = run.files.folder_of(4) + "/manifest.json";
  std::string text = read_bytes(path);
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  const std::size_t end = text.find(",\n \"crc32c\"");
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x",
                internal::crc32c(text.data(), end));
  text.replace(end + 14, 8, digits);
  write_bytes(path, text);
  EXPECT_EQ(value_error_of([&] { run.files.load_latest(); }),
            path +
                " has version 2 of the format; this gpipe reads versions up to "
                "1");
}

TEST(RunFilesTest, WhatCannotBeSavedIsAnErrorAndLeavesNothing) {
  Trial run(run_folder());
  RunState state = small_state(3);
  state.model.insert("bad", at::empty({2}, at::TensorOptions(at::kMeta)));
  EXPECT_EQ(value_error_of([&] { run.files.save(state); }),
            "'bad' is on the meta device, and so has no values");
  state = small_state(3);
  state.words["x"] = "\xFF";
  EXPECT_NE(value_error_of([&] { run.files.save(state); }), "no error");
  state = small_state(-3);
  EXPECT_EQ(value_error_of([&] { run.files.save(state); }),
            "step -3 cannot be saved: it is negative");
  EXPECT_EQ(names_in(run.folder), Lines());
  EXPECT_EQ(value_error_of([] { RunFiles("a", RunFilesOptions().keep(0)); }),
            "keep is 0, should be at least 1");
}

// ---- Disks that fail

std::string temporary_name(int64_t step) {
  char host[256] = {}, name[400];
  gethostname(host, sizeof host - 1);
  std::snprintf(name, sizeof name, ".step-%012d.tmp-%s-%d",
                static_cast<int>(step), host, static_cast<int>(getpid()));
  return name;
}

TEST(RunFilesTest, SyncsEachFileAndFolderBeforeTheNameAndTheFolderAfterIt) {
  Trial run(run_folder(), /*keep=*/1);
  run.files.save(small_state(1));
  arm_fault(run.folder, 0, Fault::kNone);
  run.files.save(small_state(2));
  Lines operations = disarm_fault();
  const std::string temporary = temporary_name(2);
  for (std::string& each : operations) {
    const std::size_t at = each.find(temporary);
    if (at != std::string::npos) each.replace(at, temporary.size(), "T");
  }
  const Lines expected = {
      "open .",  // searches for files of dead processes
      "mkdir T",
      "create T/model.safetensors",
      "write T/model.safetensors",
      "write T/model.safetensors",
      "write T/model.safetensors",
      "write T/model.safetensors",
      "fsync T/model.safetensors",
      "close T/model.safetensors",
      "create T/optimizer.safetensors",
      "write T/optimizer.safetensors",
      "write T/optimizer.safetensors",
      "fsync T/optimizer.safetensors",
      "close T/optimizer.safetensors",
      "create T/generators.safetensors",
      "write T/generators.safetensors",
      "write T/generators.safetensors",
      "fsync T/generators.safetensors",
      "close T/generators.safetensors",
      "create T/manifest.json",
      "write T/manifest.json",
      "fsync T/manifest.json",
      "close T/manifest.json",
      "open T",
      "fsync T",
      "close T",
      "rename step-000000000002",
      "open .",
      "fsync .",
      "close .",
  };
  // The operations after these remove the old step.
  ASSERT_GE(operations.size(), expected.size());
  operations.resize(expected.size());
  EXPECT_EQ(operations, expected);
  EXPECT_EQ(run.files.steps(), Steps{2});
}

// The results of saves, each with a fault at another operation.
struct Outcomes {
  int64_t operations = 0, errors = 0, reports = 0;
};

Outcomes with_each_operation(Fault fault, int error, bool replace) {
  const int64_t step = 3;
  Outcomes outcomes;
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE("operation " + std::to_string(at));
    Trial run(run_folder());
    run.files.save(small_state(1));
    run.files.save(small_state(2));
    if (replace) run.files.save(small_state(step));
    const Steps before = run.files.steps();

    arm_fault(run.folder, at, fault, error);
    const std::string text =
        error_of([&] { run.files.save(small_state(step)); });
    const auto operations = static_cast<int64_t>(disarm_fault().size());
    if (at >= operations) return outcomes;
    ++outcomes.operations;

    // No step is damaged, and the newest complete one can be loaded.
    const Lines lines = run.take_lines();
    EXPECT_EQ(run.latest(),
              text == "no error" || replace || run.files.steps().back() == step
                  ? step
                  : 2);
    EXPECT_EQ(run.lines, Lines());
    if (text != "no error") {
      ++outcomes.errors;
      const std::string reason =
          error == ENOSPC ? "No space left on device" : "Input/output error";
      EXPECT_NE(text.find(reason), std::string::npos) << text;
      EXPECT_EQ(text.compare(0, run.folder.size(), run.folder), 0) << text;
      for (const int64_t each : before) {
        expect_equal(run.files.load(each), small_state(each));
      }
    }
    if (!lines.empty()) ++outcomes.reports;

    // The next save succeeds without the fault, and removes temporary folders.
    run.files.save(small_state(step));
    EXPECT_EQ(names_in(run.folder),
              (Lines{"step-000000000002", "step-000000000003"}));
    EXPECT_EQ(run.latest(), step);
  }
}

TEST(RunFilesTest, AFullDiskAtAnyOperationLosesNothing) {
  const Outcomes full =
      with_each_operation(Fault::kError, ENOSPC, /*replace=*/false);
  EXPECT_GT(full.operations, 40);
  EXPECT_GT(full.errors, 25);
  const Outcomes replacing =
      with_each_operation(Fault::kError, ENOSPC, /*replace=*/true);
  EXPECT_GT(replacing.operations, 40);
}

TEST(RunFilesTest, ADiskThatFailsAtAnyOperationLosesNothing) {
  const Outcomes once =
      with_each_operation(Fault::kErrorOnce, EIO, /*replace=*/false);
  EXPECT_GT(once.operations, 40);
  EXPECT_GT(once.errors, 25);
  EXPECT_GT(once.reports, 0);
  with_each_operation(Fault::kErrorOnce, EIO, /*replace=*/true);
}

TEST(RunFilesTest, AFullDiskLeavesNoTemporaryFolder) {
  Trial run(run_folder());
  run.files.save(small_state(1));
  arm_fault(run.folder + "/" + temporary_name(2) + "/optimizer", 1,
            Fault::kError, ENOSPC);
  EXPECT_EQ(error_of([&] { run.files.save(small_state(2)); }),
            run.folder + "/" + temporary_name(2) +
                "/optimizer.safetensors: cannot be written: No space left on "
                "device");
  disarm_fault();
  EXPECT_EQ(names_in(run.folder), Lines{"step-000000000001"});
}

TEST(RunFilesTest, ADiskThatTakesHalfIsAskedAgain) {
  for (int64_t at = 0;; ++at) {
    Trial run(run_folder());
    arm_fault(run.folder, at, Fault::kShort);
    run.files.save(small_state(1));
    if (at >= static_cast<int64_t>(disarm_fault().size())) break;
    ASSERT_EQ(run.latest(), 1);
  }
}

TEST(RunFilesTest, ALimitOfTheSystemIsAnError) {
  Trial run(run_folder());
  run.files.save(small_state(1));
  RunState large = small_state(2);
  large.model.insert("large", at::full({10000}, 1.0));
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit low = before;
  low.rlim_cur = 20000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  EXPECT_EQ(error_of([&] { run.files.save(large); }),
            run.folder + "/" + temporary_name(2) +
                "/model.safetensors: cannot be written: File too large");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(names_in(run.folder), Lines{"step-000000000001"});
  EXPECT_EQ(run.latest(), 1);
}

TEST(RunFilesTest, RemovesWhatTheDeadHaveLeft) {
  Trial run(run_folder());
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const auto leave = [&](const std::string& step, const std::string& owner) {
    const std::string path =
        run.folder + "/.step-" + step + ".tmp-" + owner + "/";
    std::filesystem::create_directories(path);
    write_bytes(path + "model.safetensors", "part");
  };
  const std::string here = std::string(host) + "-";
  leave("000000000004", here + std::to_string(dead));
  leave("000000000009", here + std::to_string(dead) + ".old");
  leave("000000000004", here + std::to_string(getpid()));
  leave("000000000004", here + "1");       // a process that is alive
  leave("000000000005", "other-host-77");  // left over, as this run is later
  leave("000000000006", "other-host-77");  // unknown
  run.files.save(small_state(5));
  EXPECT_EQ(names_in(run.folder), (Lines{".step-000000000004.tmp-" + here + "1",
                                         ".step-000000000006.tmp-other-host-77",
                                         "step-000000000005"}));
}

// ---- Several processes, simulated by threads

class Meeting {
 public:
  explicit Meeting(int count) : words_(count) {}

  // Makes all calls throw, as if a process had died.
  void end() {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    all_here_.notify_all();
  }

  std::vector<std::string> gather(int index, const std::string& mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    TORCH_CHECK(!ended_, "a process has died");
    const int64_t round = round_;
    words_[index] = mine;
    if (++arrived_ == words_.size()) {
      arrived_ = 0;
      result_ = words_;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ > round || ended_; });
    TORCH_CHECK(round_ > round, "a process has died");
    return result_;  // does not change before all have called again
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::string> words_, result_;
  std::size_t arrived_ = 0;
  int64_t round_ = 0;
  bool ended_ = false;
};

// Runs body(files, index) on `count` threads. Returns the errors by index.
Lines in_processes(int count, const std::string& folder,
                   const std::function<void(RunFiles&, int)>& body) {
  Meeting meeting(count);
  Lines errors(count);
  std::vector<std::thread> threads;
  for (int k = 0; k < count; ++k) {
    threads.emplace_back([&, k] {
      RunShard shard;
      shard.index = k;
      shard.count = count;
      shard.all_gather = [&meeting, k](const std::string& mine) {
        return meeting.gather(k, mine);
      };
      RunFiles files(folder, RunFilesOptions().shard(shard));
      errors[k] = error_of([&] { body(files, k); });
    });
  }
  for (auto& each : threads) each.join();
  return errors;
}

std::string parameter_name(int k) { return std::to_string(k) + ".weight"; }

// Returns the part of process `index` of `count` in a state of 8 parameters.
RunState part_of_state(int index, int count) {
  RunState state;
  state.step = 10;
  OptimizerState& optimizer = state.optimizer.emplace();
  optimizer.type = "SGD";
  optimizer.groups = {{{"lr", 0.5}}};
  for (int k = index * 8 / count; k < (index + 1) * 8 / count; ++k) {
    state.model.insert(parameter_name(k), numbers(3, k));
    optimizer.parameters[parameter_name(k)] = {
        0, {}, {{"momentum_buffer", numbers(3, -k)}}};
  }
  state.generators["cpu"] =
      at::full({4}, 10 * count + index, at::TensorOptions(at::kByte));
  if (index == 0) state.words["epoch"] = "2";
  return state;
}

RunFiles::Names names_of_part(int index, int count) {
  RunFiles::Names names;
  for (int k = index * 8 / count; k < (index + 1) * 8 / count; ++k) {
    names.insert(parameter_name(k));
  }
  return names;
}

TEST(RunFilesTest, AnotherNumberOfProcessesLoadsTheSame) {
  for (const int writers : {1, 2, 4, 8}) {
    const std::string folder = run_folder();
    EXPECT_EQ(in_processes(writers, folder,
                           [&](RunFiles& files, int k) {
                             files.save(part_of_state(k, writers));
                           }),
              Lines(writers, "no error"));
    EXPECT_EQ(names_in(folder), Lines{"step-000000000010"});
    for (const int readers : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(std::to_string(writers) + " to " + std::to_string(readers));
      std::vector<RunState> loaded(readers);
      EXPECT_EQ(in_processes(
                    readers, folder,
                    [&](RunFiles& files, int k) {
                      loaded[k] =
                          files.load_latest(names_of_part(k, readers)).value();
                    }),
                Lines(readers, "no error"));
      for (int k = 0; k < readers; ++k) {
        RunState expected = part_of_state(k, readers);
        expected.words = {{"epoch", "2"}};
        // The process's own generator, or that of the first process.
        expected.generators =
            part_of_state(readers == writers ? k : 0, writers).generators;
        expect_equal(loaded[k], expected);
      }
    }
  }
}

TEST(RunFilesTest, FilesOfSeveralProcessesSayWhoseTheyAre) {
  const std::string folder = run_folder();
  in_processes(2, folder,
               [](RunFiles& files, int k) { files.save(part_of_state(k, 2)); });
  EXPECT_EQ(names_in(folder + "/step-000000000010"),
            (Lines{"generators-00000-of-00002.safetensors",
                   "generators-00001-of-00002.safetensors", "manifest.json",
                   "model-00000-of-00002.safetensors",
                   "model-00001-of-00002.safetensors",
                   "optimizer-00000-of-00002.safetensors",
                   "optimizer-00001-of-00002.safetensors"}));
}

TEST(RunFilesTest, DamageThatOneProcessSeesSendsAllToTheStepBefore) {
  const std::string folder = run_folder();
  for (const int64_t step : {10, 20}) {
    in_processes(4, folder, [&](RunFiles& files, int k) {
      RunState state = part_of_state(k, 4);
      state.step = step;
      files.save(state);
    });
  }
  const std::string path =
      folder + "/step-000000000020/optimizer-00002-of-00004.safetensors";
  std::string bytes = read_bytes(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(path, bytes);
  Steps loaded(4);
  EXPECT_EQ(
      in_processes(4, folder,
                   [&](RunFiles& files, int k) {
                     loaded[k] =
                         files.load_latest(names_of_part(k, 4)).value().step;
                   }),
      Lines(4, "no error"));
  EXPECT_EQ(loaded, (Steps{10, 10, 10, 10}));
}

TEST(RunFilesTest, TheFullDiskOfOneProcessIsTheErrorOfAll) {
  const std::string folder = run_folder();
  in_processes(3, folder,
               [](RunFiles& files, int k) { files.save(part_of_state(k, 3)); });
  const std::string path =
      folder + "/" + temporary_name(11) + "/model-00001-of-00003.safetensors";
  arm_fault(path, 1, Fault::kError, ENOSPC);
  const Lines errors = in_processes(3, folder, [](RunFiles& files, int k) {
    RunState state = part_of_state(k, 3);
    state.step = 11;
    files.save(state);
  });
  disarm_fault();
  EXPECT_EQ(errors, Lines(3, "process 1 of 3: " + path +
                                 ": cannot be written: No space left on "
                                 "device"));
  EXPECT_EQ(names_in(folder), Lines{"step-000000000010"});
}

TEST(RunFilesTest, AProcessThatDiesLosesNothing) {
  // Process 1 dies at its all_gather number `words`, counted from 0.
  for (int words = 0; words <= 3; ++words) {
    SCOPED_TRACE(words);
    const std::string folder = run_folder();
    in_processes(2, folder, [](RunFiles& files, int k) {
      files.save(part_of_state(k, 2));
    });
    Meeting meeting(2);
    const auto save = [&](int k) {
      int said = 0;
      RunShard shard;
      shard.index = k;
      shard.count = 2;
      shard.all_gather = [&](const std::string& mine) {
        if (k == 1 && said++ == words) {
          meeting.end();
          TORCH_CHECK(false, "killed");
        }
        return meeting.gather(k, mine);
      };
      RunState state = part_of_state(k, 2);
      state.step = 11;
      RunFiles(folder, RunFilesOptions().shard(shard)).save(state);
    };
    std::thread other([&] { error_of([&] { save(1); }); });
    const std::string error = error_of([&] { save(0); });
    other.join();
    EXPECT_EQ(error, words < 3 ? "a process has died" : "no error");
    // The new step may have been complete just before.
    RunFiles files(folder);
    EXPECT_EQ(files.load_latest()->step, files.steps().back());
    EXPECT_EQ(files.steps().front(), 10);
    EXPECT_LE(files.steps().size(), words < 2 ? 1u : 2u);
    expect_equal(files.load(10).model, part_of_state(0, 1).model);
    EXPECT_EQ(names_in(folder).size(), files.steps().size());
  }
}

TEST(RunFilesTest, ProcessesThatDoNotFitTogetherAreAnError) {
  const std::string folder = run_folder();
  const auto errors = [&](const std::function<RunState(int)>& state) {
    const Lines result = in_processes(
        2, folder, [&](RunFiles& files, int k) { files.save(state(k)); });
    EXPECT_EQ(result[0], result[1]);
    return result[0];
  };
  EXPECT_EQ(errors([](int) { return part_of_state(0, 2); }),
            "process 0 of 2: the optimizers of two processes both have "
            "'0.weight'; with replicas, only one of them may save an "
            "optimizer");
  EXPECT_EQ(errors([](int k) {
              RunState state = part_of_state(0, 2);
              if (k > 0) state.optimizer.reset();
              return state;
            }),
            "process 0 of 2: processes 0 and 1 both save '0.weight'; with "
            "replicas, only one of them may save a model");
  EXPECT_EQ(errors([](int k) {
              RunState state = part_of_state(k, 2);
              state.step += k;
              return state;
            }),
            "process 0 of 2: process 0 saves step 10, but process 1 saves step "
            "11");
  EXPECT_EQ(errors([](int k) {
              RunState state = part_of_state(k, 2);
              if (k > 0) state.optimizer->type = "Adam";
              return state;
            }),
            "process 0 of 2: the optimizer of one process is SGD, but that of "
            "another is Adam");
  EXPECT_EQ(names_in(folder), Lines());
}

}  // namespace
}  // namespace gpipe
