// Tests run checkpoints of several processes, simulated by threads.
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/run_shard.h"
#include "training/run_files.h"
#include "training/testing/file_faults.h"
#include "training/testing/run_states.h"

namespace gpipe {
namespace {

using testing::arm_fault;
using testing::changed_manifest;
using testing::disarm_fault;
using ::testing::Each;
using testing::error_of;
using testing::expect_equal;
using testing::Fault;
using testing::names_in;
using testing::numbers;
using testing::read_bytes;
using testing::run_folder;
using ::testing::StartsWith;
using testing::temporary_name;
using testing::value_error_of;
using testing::write_bytes;
using Lines = std::vector<std::string>;
using Steps = std::vector<int64_t>;

// An all_gather() of processes that are simulated by threads.
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

// Runs body(shard) on a thread for each of `indices`. Returns the errors in the
// order of `indices`.
Lines with_shards(const std::vector<int>& indices,
                  const std::function<void(const RunShard&)>& body) {
  const int count = static_cast<int>(indices.size());
  Meeting meeting(count);
  Lines errors(count);
  std::vector<std::thread> threads;
  for (int k = 0; k < count; ++k) {
    threads.emplace_back([&, k] {
      const RunShard shard{indices[k], count, [&, k](const std::string& mine) {
                             return meeting.gather(k, mine);
                           }};
      errors[k] = error_of([&] { body(shard); });
    });
  }
  for (auto& each : threads) each.join();
  return errors;
}

// Runs body(files, index) on a thread for each of `folders`. Returns the errors
// by index.
Lines in_processes(const Lines& folders,
                   const std::function<void(RunFiles&, int)>& body) {
  std::vector<int> indices(folders.size());
  std::iota(indices.begin(), indices.end(), 0);
  return with_shards(indices, [&](const RunShard& shard) {
    RunFiles files(folders[shard.index], RunFilesOptions().shard(shard));
    body(files, shard.index);
  });
}

Lines in_processes(int count, const std::string& folder,
                   const std::function<void(RunFiles&, int)>& body) {
  return in_processes(Lines(count, folder), body);
}

std::string parameter_name(int k) { return std::to_string(k) + ".weight"; }

// Returns the part of process `index` of `count` in a state of 8 parameters.
RunState part_of_state(int index, int count, int64_t step = 10) {
  RunState state;
  state.step = step;
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
  if (index == 0) state.metadata["epoch"] = "2";
  return state;
}

// Saves a step by `count` processes. Returns their errors.
Lines save_parts(const std::string& folder, int count, int64_t step = 10) {
  return in_processes(count, folder, [&](RunFiles& files, int k) {
    files.save(part_of_state(k, count, step));
  });
}

RunFiles::Names names_of_part(int index, int count) {
  RunFiles::Names names;
  for (int k = index * 8 / count; k < (index + 1) * 8 / count; ++k) {
    names.insert(parameter_name(k));
  }
  return names;
}

TEST(RunFilesTest, ProcessesWithOtherFoldersAreToldBeforeTheySave) {
  const std::string folder = run_folder(), other = run_folder();
  const auto make = [&](const std::string& of_last) {
    return in_processes({folder, folder, of_last},
                        [](RunFiles& files, int) { files.check_shared(); });
  };
  EXPECT_THAT(make(other), Each(StartsWith("process 2 of 3 has another "
                                           "folder, " +
                                           other + ", than process 0")));
  EXPECT_EQ(make(folder), Lines(3, "no error"));
  EXPECT_EQ(names_in(folder), Lines());
}

TEST(RunFilesTest, AnotherNumberOfProcessesLoadsTheSame) {
  for (const int writers : {1, 2, 4, 8}) {
    const std::string folder = run_folder();
    EXPECT_EQ(save_parts(folder, writers), Lines(writers, "no error"));
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
        expected.metadata = {{"epoch", "2"}};
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
  save_parts(folder, 2);
  EXPECT_EQ(names_in(folder + "/step-000000000010"),
            (Lines{"generators-00000-of-00002.safetensors",
                   "generators-00001-of-00002.safetensors", "manifest.json",
                   "model-00000-of-00002.safetensors",
                   "model-00001-of-00002.safetensors",
                   "optimizer-00000-of-00002.safetensors",
                   "optimizer-00001-of-00002.safetensors"}));
}

TEST(RunFilesTest, AProcessThatThrowsSomethingElseIsNamedByAll) {
  const auto run = [](const RunShard& shard) {
    internal::together(shard, [&]() -> std::string {
      if (shard.index == 1) throw 42;
      return "";
    });
  };
  EXPECT_EQ(with_shards({0, 1}, run), Lines(2,
                                            "process 1 of 2: an exception that "
                                            "is no std::exception"));
}

// As on two machines, if each process gives its rank on its machine.
TEST(RunFilesTest, ProcessesWithTheSameIndexAreTold) {
  // Two processes 0 may get in each other's way before they know.
  const auto run = [](const RunShard& shard) {
    internal::together(shard, [&]() -> std::string {
      TORCH_CHECK(shard.index > 0, "another process does the same");
      return "-5+";
    });
  };
  EXPECT_EQ(with_shards({0, 1, 0, 1}, run),
            Lines(4,
                  "process 2 of 4 has the index '0' in its RunShard; give each "
                  "process its rank among all processes, not that on its "
                  "machine"));
}

TEST(RunFilesTest, AnyTextArrivesAtAllProcesses) {
  const Lines texts = {"", "+", "-1", "1+2"};
  const auto run = [&](const RunShard& shard) {
    EXPECT_EQ(internal::together(shard, [&] { return texts[shard.index]; }),
              texts);
  };
  EXPECT_EQ(with_shards({0, 1, 2, 3}, run), Lines(4, "no error"));
}

TEST(RunFilesTest, ALaterFormatIsAValueErrorOfAllProcesses) {
  const std::string folder = run_folder();
  save_parts(folder, 2);
  const std::string path = folder + "/step-000000000010/manifest.json";
  write_bytes(path, changed_manifest(read_bytes(path), "\"version\": 1",
                                     "\"version\": 2"));
  const std::string expected =
      path + " has version 2 of the format; this gpipe reads versions up to 1";
  for (const int64_t step : {0, 10}) {
    Lines errors(2);
    EXPECT_EQ(in_processes(2, folder,
                           [&](RunFiles& files, int k) {
                             errors[k] = value_error_of([&] {
                               step > 0 ? (void)files.load(step)
                                        : (void)files.load_latest();
                             });
                           }),
              Lines(2, "no error"));
    EXPECT_EQ(errors, Lines(2, expected));
  }
}

TEST(RunFilesTest, DamageThatOneProcessSeesSendsAllToTheStepBefore) {
  const std::string folder = run_folder();
  for (const int64_t step : {10, 20}) {
    save_parts(folder, 4, step);
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
  save_parts(folder, 3);
  const std::string path =
      folder + "/" + temporary_name(11) + "/model-00001-of-00003.safetensors";
  arm_fault(path, 1, Fault::kError, ENOSPC);
  const Lines errors = save_parts(folder, 3, 11);
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
    save_parts(folder, 2);
    Meeting meeting(2);
    const auto save = [&](int k) {
      int said = 0;
      const RunShard shard{k, 2, [&](const std::string& mine) {
                             if (k == 1 && said++ == words) {
                               meeting.end();
                               TORCH_CHECK(false, "killed");
                             }
                             return meeting.gather(k, mine);
                           }};
      RunFiles(folder, RunFilesOptions().shard(shard))
          .save(part_of_state(k, 2, 11));
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

TEST(SaveInBackgroundTest, OfSeveralProcessesWritesTheFilesOfASave) {
  const std::string plain = run_folder();
  const std::string background = run_folder();
  save_parts(plain, 4);
  EXPECT_EQ(in_processes(4, background,
                         [](RunFiles& files, int k) {
                           RunState state = part_of_state(k, 4);
                           files.save_in_background(state);
                           for (auto& item : state.model) item.value().zero_();
                           files.wait();
                         }),
            Lines(4, "no error"));
  const std::string step = "/step-000000000010";
  EXPECT_EQ(names_in(background), names_in(plain));
  ASSERT_EQ(names_in(background + step), names_in(plain + step));
  for (const std::string& name : names_in(plain + step)) {
    EXPECT_EQ(read_bytes(background + step + "/" + name),
              read_bytes(plain + step + "/" + name))
        << name;
  }
}

TEST(SaveInBackgroundTest, TheFullDiskOfOneProcessIsTheErrorOfAll) {
  const std::string folder = run_folder();
  save_parts(folder, 3);
  // A file of process 1, and the manifest that it leaves for process 0.
  for (const std::string file :
       {"model-00001-of-00003.safetensors", "part-00001.json"}) {
    const std::string path = folder + "/" + temporary_name(11) + "/" + file;
    arm_fault(path, 1, Fault::kError, ENOSPC);
    const Lines errors = in_processes(3, folder, [](RunFiles& files, int k) {
      files.save_in_background(part_of_state(k, 3, 11));
      files.wait();
    });
    disarm_fault();
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_EQ(errors[0], errors[2]);
    EXPECT_THAT(errors[0], ::testing::StartsWith("process 1 of 3: " + path));
    EXPECT_THAT(errors[0], ::testing::HasSubstr("No space left on device"));
    EXPECT_EQ(names_in(folder), Lines{"step-000000000010"});
  }
}

TEST(SaveInBackgroundTest, GivesUpWhatAProcessThatDiedHasNotWritten) {
  const std::string folder = run_folder();
  save_parts(folder, 2);
  // Process 1 dies instead of starting its save.
  const Lines errors = in_processes(2, folder, [](RunFiles& files, int k) {
    files.save_in_background(part_of_state(k, 2, k == 1 ? -1 : 11));
  });
  EXPECT_EQ(errors, Lines(2,
                          "process 1 of 2: step -1 cannot be saved: it is "
                          "negative"));
  EXPECT_EQ(names_in(folder), Lines{"step-000000000010"});

  Meeting meeting(2);
  const auto save = [&](int k, const std::function<void(RunFiles&)>& then) {
    const RunShard shard{
        k, 2, [&](const std::string& mine) { return meeting.gather(k, mine); }};
    RunFiles files(folder, RunFilesOptions().shard(shard));
    files.save_in_background(part_of_state(k, 2, 11));
    then(files);
  };
  // The manifest of process 1 never appears.
  arm_fault(folder + "/" + temporary_name(11) + "/part-00001.json", 0,
            Fault::kError, EIO);
  std::thread other([&] { save(1, [&](RunFiles&) { meeting.end(); }); });
  std::string error;
  save(0, [&](RunFiles& files) {
    other.join();
    error = error_of([&] { files.wait(); });
  });
  disarm_fault();
  EXPECT_EQ(error, "a process has died");
  EXPECT_EQ(names_in(folder), Lines{"step-000000000010"});
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
  EXPECT_EQ(errors([](int k) { return part_of_state(k, 2, 10 + k); }),
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
