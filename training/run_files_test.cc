#include "training/run_files.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "training/testing/file_faults.h"
#include "training/testing/run_states.h"

namespace gpipe {
namespace {

using testing::arm_fault;
using testing::changed_manifest;
using testing::disarm_fault;
using testing::error_of;
using testing::expect_equal;
using testing::Fault;
using testing::names_in;
using testing::read_bytes;
using testing::run_folder;
using testing::small_state;
using testing::temporary_name;
using testing::value_error_of;
using testing::write_bytes;
using Lines = std::vector<std::string>;
using Steps = std::vector<int64_t>;

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

TEST(RunFilesTest, GivesBackEveryBit) {
  Trial run(run_folder() + "/a/b");  // creates the missing folders
  RunState state = small_state(7);
  state.model = testing::every_kind_of_tensor(/*for_safetensors=*/true);
  const double infinity = std::numeric_limits<double>::infinity();
  state.optimizer->groups[0] = {{"third", 1.0 / 3},
                                {"least", 4.9e-324},
                                {"inf", infinity},
                                {"minus inf", -infinity}};
  state.metadata["ünïcode \"quoted\"\n"] = "\t\\";
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
  EXPECT_EQ(model.keys(), (Lines{"0.weight", "0.bias", "1.count"}));
  expect_equal(model, small_state(120).model);
  EXPECT_EQ(read_safetensors(step + "/optimizer.safetensors").tensors.keys(),
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

TEST(RunFilesTest, StepsAfterTheOneSavedStayAndAreReported) {
  Trial run(run_folder(), /*keep=*/1);
  const Lines line = {
      run.folder +
      "/step-000000000009 is of an earlier run, or a later step of this one; a "
      "resume with auto tries it first. Move it away, or use another folder"};
  run.files.save(small_state(9));
  EXPECT_EQ(run.lines, Lines());
  EXPECT_FALSE(run.files.resume("none"));
  EXPECT_EQ(run.take_lines(), line);
  run.files.save(small_state(3));
  EXPECT_EQ(run.files.steps(), (Steps{3, 9}));
  EXPECT_EQ(run.take_lines(), line);
  EXPECT_EQ(run.files.resume("3")->step, 3);
  EXPECT_EQ(run.take_lines(), line);
  run.files.save_in_background(small_state(4));
  run.files.wait();
  EXPECT_EQ(run.files.steps(), (Steps{4, 9}));
  EXPECT_EQ(run.take_lines(), line);
  EXPECT_EQ(run.files.resume("9")->step, 9);
  EXPECT_EQ(run.files.resume("auto")->step, 9);
  run.files.save(small_state(9));
  run.files.save(small_state(10));
  EXPECT_EQ(run.lines, Lines());
}

TEST(RunFilesTest, ASavedStepIsReplaced) {
  Trial run(run_folder(), /*keep=*/1);
  RunState state = small_state(3);
  run.files.save(state);
  state.metadata["epoch"] = "4";
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

  state.metadata["epoch"] = "4";
  arm_fault(run.folder, exchange - operations.begin(), Fault::kErrorOnce,
            EINVAL);  // the error on NFS
  run.files.save(state);
  disarm_fault();
  EXPECT_EQ(names_in(run.folder), Lines{"step-000000000003"});
  expect_equal(run.files.load(3), state);
}

// As of two processes that each save their layers alone.
TEST(RunFilesTest, AStepOfOtherLayersIsNotReplaced) {
  Trial run(run_folder(), /*keep=*/1);
  const RunState first = small_state(3);
  run.files.save(first);
  RunState other;
  other.step = 3;
  other.model.insert("4.bias", at::full({2}, 1));
  other.model.insert("3.weight", at::full({2}, 1));
  const std::string expected =
      run.files.folder_of(3) +
      " has other layers: it contains '0.bias' and no tensor of the model to "
      "save, such as '3.weight'. If several processes save one model, give "
      "each its place by RunFilesOptions::shard; else use another folder for "
      "this model";
  EXPECT_EQ(value_error_of([&] { run.files.save(other); }), expected);
  run.files.save_in_background(other);
  EXPECT_EQ(value_error_of([&] { run.files.wait(); }), expected);
  EXPECT_EQ(names_in(run.folder), Lines{"step-000000000003"});
  expect_equal(run.files.load(3), first);

  // One name in common is enough, as after a layer was added.
  other.model.insert("1.count", at::full({}, 1));
  run.files.save(other);
  expect_equal(run.files.load(3), other);
  // A step without a model, before and after.
  RunState bare;
  bare.step = 3;
  run.files.save(bare);
  expect_equal(run.files.load(3), bare);
  run.files.save(first);
  expect_equal(run.files.load(3), first);
}

TEST(RunFilesTest, AStepThatCannotBeReadIsReplacedByOtherLayers) {
  Trial run(run_folder(), /*keep=*/1);
  RunState other;
  other.step = 3;
  other.model.insert("4.bias", at::full({2}, 1));
  const std::string path = run.files.folder_of(3) + "/manifest.json";
  run.files.save(small_state(3));
  const std::string manifest = read_bytes(path);
  const std::string later =
      changed_manifest(manifest, "\"version\": 1", "\"version\": 2");
  for (const std::string& now : {std::string("{}"), later}) {
    write_bytes(path, now);
    run.files.save(other);
    expect_equal(run.files.load(3), other);
  }
  std::filesystem::remove(path);
  run.files.save(small_state(3));
  EXPECT_EQ(run.latest(), 3);
}

TEST(RunFilesTest, LoadsWhatIsAskedFor) {
  Trial run(run_folder());
  run.files.save(small_state(3));
  const auto state = run.files.load(3, RunFiles::Names{"0.bias", "9.bias"});
  EXPECT_EQ(state.model.keys(), Lines{"0.bias"});
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

TEST(RunFilesTest, AnotherFormatIsAnErrorAndNotPassedOver) {
  Trial run(run_folder());
  run.files.save(small_state(3));
  run.files.save(small_state(4));
  const std::string path = run.files.folder_of(4) + "/manifest.json";
  const std::string manifest = read_bytes(path);
  const auto error_with = [&](const std::string& what, const std::string& by) {
    write_bytes(path, changed_manifest(manifest, what, by));
    return value_error_of([&] { run.files.load_latest(); });
  };
  EXPECT_EQ(error_with("\"version\": 1", "\"version\": 2"),
            path +
                " has version 2 of the format; this gpipe reads versions up to "
                "1");
  EXPECT_EQ(error_with("gpipe run state", "gpipe walk state"),
            path +
                " has the format 'gpipe walk state'; this gpipe reads 'gpipe "
                "run state'");
}

TEST(RunFilesTest, WhatCannotBeSavedIsAnErrorAndLeavesNothing) {
  Trial run(run_folder());
  RunState state = small_state(3);
  state.model.insert("bad", at::empty({2}, at::TensorOptions(at::kMeta)));
  EXPECT_EQ(value_error_of([&] { run.files.save(state); }),
            "'bad' is on the meta device, and so has no values");
  state = small_state(3);
  state.metadata["x"] = "\xFF";
  EXPECT_NE(value_error_of([&] { run.files.save(state); }), "no error");
  state = small_state(-3);
  EXPECT_EQ(value_error_of([&] { run.files.save(state); }),
            "step -3 cannot be saved: it is negative");
  EXPECT_EQ(names_in(run.folder), Lines());
  EXPECT_EQ(value_error_of([] { RunFiles("a", RunFilesOptions().keep(0)); }),
            "keep is 0, should be at least 1");
}

// ---- Disks that fail

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
  // The first one searches for files of dead processes.
  Lines expected = {"open .", "mkdir T"};
  const auto add_file = [&](const std::string& name, int writes) {
    expected.push_back("create T/" + name);
    expected.insert(expected.end(), writes, "write T/" + name);
    expected.insert(expected.end(), {"fsync T/" + name, "close T/" + name});
  };
  add_file("model.safetensors", 4);
  add_file("optimizer.safetensors", 2);
  add_file("generators.safetensors", 2);
  add_file("manifest.json", 1);
  expected.insert(expected.end(),
                  {"open T", "fsync T", "close T", "rename step-000000000002",
                   "open .", "fsync .", "close ."});
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

    // Not the state that it replaces.
    RunState next = small_state(step);
    next.metadata["save"] = "second";
    next.model.insert("second", at::ones({3}));
    next.model.insert("third", at::ones({3}));
    arm_fault(run.folder, at, fault, error);
    const std::string text = error_of([&] { run.files.save(next); });
    const auto operations = static_cast<int64_t>(disarm_fault().size());
    if (at >= operations) return outcomes;
    ++outcomes.operations;

    // No step is damaged, and the newest complete one can be loaded.
    const Lines lines = run.take_lines();
    const RunState newest = run.files.load_latest().value();
    const bool is_next = newest.metadata.contains("save");
    expect_equal(newest, is_next ? next : small_state(replace ? step : 2));
    if (text == "no error") {
      EXPECT_TRUE(is_next) << "the save did nothing";
    }
    EXPECT_EQ(run.lines, Lines());
    if (text != "no error") {
      ++outcomes.errors;
      const std::string reason =
          error == ENOSPC ? "No space left on device" : "Input/output error";
      EXPECT_NE(text.find(reason), std::string::npos) << text;
      EXPECT_EQ(text.compare(0, run.folder.size(), run.folder), 0) << text;
      for (const int64_t each : before) {
        if (each == step && is_next) continue;  // its name was not synced
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

TEST(RunFilesTest, AnOperationThatASignalInterruptsIsRepeated) {
  for (std::size_t at = 0;; ++at) {
    Trial run(run_folder());
    run.files.save(small_state(1));
    arm_fault(run.folder, static_cast<int64_t>(at), Fault::kErrorOnce, EINTR);
    const std::string error = error_of([&] { run.files.save(small_state(2)); });
    const Lines operations = disarm_fault();
    if (at >= operations.size()) break;
    const std::string& operation = operations[at];
    // The first one lists the folder. Names may have changed in spite of EINTR.
    if (at == 0 || operation.starts_with("mkdir ") ||
        operation.starts_with("rename ")) {
      continue;
    }
    EXPECT_EQ(error, "no error") << operation;
    EXPECT_EQ(run.latest(), 2) << operation;
  }
}

TEST(RunFilesTest, ALimitOfTheSystemIsAnError) {
  Trial run(run_folder());
  run.files.save(small_state(1));
  RunState large = small_state(2);
  large.model.insert("large", at::full({10000}, 1.0));
  testing::with_file_limit(20000, [&] {
    EXPECT_EQ(error_of([&] { run.files.save(large); }),
              run.folder + "/" + temporary_name(2) +
                  "/model.safetensors: cannot be written: File too large");
  });
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

}  // namespace
}  // namespace gpipe
