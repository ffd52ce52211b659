// Run checkpoints. One folder holds a run, with a sub-folder for each
// of the last steps that were saved. docs/checkpoints.md lists their files.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/weights/run_shard.h"
#include "training/run_state.h"

namespace gpipe {

namespace internal {
class BackgroundSaver;
class StepWriter;
}  // namespace internal

// How many steps to keep, and which processes save together.
struct RunFilesOptions {
  // The number of steps to keep, at least 1. With 2, one is left if the newest
  // turns out to be damaged.
  TORCH_ARG(int64_t, keep) = 2;

  // Called with one line about a problem that is not an error: a damaged step
  // was skipped, an old step could not be removed, or there is a later step
  // than the one that was saved or resumed. Only called during calls of
  // RunFiles, on the thread of the caller.
  TORCH_ARG(std::function<void(const std::string&)>, report);

  // The place of this process among those that save and load together. Without
  // it the process saves and loads alone. So each rank of a pipeline of several
  // processes needs it: otherwise each replaces the steps of the others by its
  // own layers.
  TORCH_ARG(RunShard, shard);
};

// The run checkpoints in one folder.
//
//   gpipe::RunFiles files("/data/run7");
//   if (auto state = files.resume("auto")) { ... }  // load it
//   for (...) {
//     ...
//     files.save(state);
//   }
//
// If the process or the machine dies at any time, earlier steps stay complete,
// and the step that was being saved is either complete or absent. A step is
// written under a temporary name, with checksums last, and is renamed when all
// its data is on the disk. Later damage to the files is detected when they are
// loaded. Then an older step is used.
//
// Several processes can share a folder, on one machine or in a file system that
// all of them see. Each saves the names that it holds, and loads the names that
// it asks for. These may differ, since a state does not depend on the number of
// processes that saved it. All processes make the same calls. Each call returns
// on all processes or throws the same error on all of them.
//
// Only one run at a time may save into a folder. Not thread-safe.
class RunFiles {
 public:
  // The names of the tensors to load.
  using Names = std::set<std::string>;

  // Creates no files. Throws c10::ValueError if an option is not valid.
  explicit RunFiles(std::string folder, RunFilesOptions options = {});

  // Finishes a save in the background if this is the only process, else gives
  // up what the other processes have not written yet. Errors are lost: call
  // wait() first.
  ~RunFiles();

  RunFiles(RunFiles&&) noexcept;

  // Finds out before a long run whether all processes, which all call this,
  // have the same folder. The first one creates it, and a file in it for that
  // time. Throws c10::ValueError on all if one of them does not see the file,
  // c10::Error if the folder cannot be created. Does nothing if there is only
  // one process.
  void check_shared();

  // Saves a step and replaces an earlier save of the same step. Then removes
  // older steps until `keep` complete steps are left, this one included.
  // Damaged steps do not count. Keeps later steps, which an earlier run may
  // have left, and reports the last of them.
  //
  // With several processes, `model` and `optimizer` contain what this process
  // holds, and no two processes may have the same name, or the same rows of a
  // parameter in a sharded optimizer. Loading gives whole parameters, so that
  // the number of replicas may change. `generators` are saved
  // for each process, `metadata` for the first one only.
  //
  // Throws c10::ValueError if the state cannot be written (see
  // models/weights/safetensors.h), if the states of the processes do not fit
  // together, or if it would replace a step of other layers: `model` has none
  // of the names that an earlier save of the same step has. Throws c10::Error,
  // with the path and the reason, if the disk is full or fails. After an error
  // the earlier steps are unchanged and nothing is left of the new one; but if
  // only the sync of its final name fails, it is complete and stays. With
  // several processes, all of them throw c10::Error, which names the process
  // that failed.
  void save(const RunState& state);

  // Saves as save() does, but only copies the state to the memory of the host
  // (pinned memory for CUDA) and returns. The files are written on a thread of
  // its own, with the same guarantees: until the step is complete, the earlier
  // ones are unchanged. The memory of the copy is used again by the next save.
  //
  // An error of writing is thrown by the next call of any function but steps()
  // and folder_of(). That call waits for the save. Throws at once what save()
  // throws for a negative step, or if the step's folder cannot be created.
  void save_in_background(const RunState& state);

  // Waits until the save in the background is complete, if there is one. Throws
  // what save() throws for it.
  void wait();

  // Returns the newest complete step, or nullopt if there is none. Compares all
  // data that it loads with the checksums, and reports the steps that it skips.
  //
  // `names`: the parameters and buffers to load, with the optimizer's state of
  // these parameters. nullopt loads all. Names that the step lacks are ignored.
  //
  // `generators` are those that the process with the same index has saved. If
  // the number of processes has changed, they are those of the first process.
  // All tensors are on the CPU.
  //
  // Throws c10::ValueError if a step has a later version of the format. Throws
  // c10::Error if the folder cannot be listed.
  std::optional<RunState> load_latest(
      const std::optional<Names>& names = std::nullopt);

  // Returns the given step. Throws c10::ValueError if it does not exist or is
  // damaged. The text says what is damaged and lists the existing steps.
  RunState load(int64_t step, const std::optional<Names>& names = std::nullopt);

  // Returns the state for a flag --resume. "auto" means load_latest(), "none"
  // and "" mean nullopt, and a number means load() of that step. Throws
  // c10::ValueError for any other text.
  //
  // Without "auto", reports the last step if it is later than the one to begin
  // with. A later resume("auto") would load it, not what this run has saved:
  // move the steps of an earlier run away, or use another folder. Also throws
  // c10::Error if the folder cannot be listed.
  std::optional<RunState> resume(
      const std::string& how, const std::optional<Names>& names = std::nullopt);

  // Returns the steps that have a folder, complete or damaged, in ascending
  // order.
  std::vector<int64_t> steps() const;

  // Returns the steps() that the first process sees. In a network file system,
  // other processes may see an older list. All processes call it.
  std::vector<int64_t> common_steps();

  // Returns the folder of a step: "/data/run7/step-000000000123".
  std::string folder_of(int64_t step) const;

 private:
  // See internal::together().
  std::vector<std::string> together(const std::function<std::string()>& body);
  void report(const std::string& line) const;

  // Returns a writer whose folder exists.
  std::unique_ptr<internal::StepWriter> begin(int64_t step);
  void finish();  // the thread of `saver_`
  std::string damage_of(int64_t step, const std::optional<Names>& names,
                        std::optional<RunState>& state);

  const std::string folder_;
  RunFilesOptions options_;
  std::unique_ptr<internal::BackgroundSaver> saver_;  // once it was needed
};

}  // namespace gpipe
