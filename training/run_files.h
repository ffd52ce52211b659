// Public: the folder in which a training run keeps its states, a folder for
// each of the last steps. docs/checkpoints.md tells what is in one.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "training/run_state.h"

namespace gpipe {

// Which of the processes of a run this is, if there are several.
struct RunShard {
  int index = 0;
  int count = 1;

  // Called by all of them at the same time: what each gives, by index. For
  // gpipe's ranks: gpipe::all_gather (gpipe/distributed/gather.h).
  std::function<std::vector<std::string>(const std::string& mine)> all_gather;
};

// How many states are kept, and who saves with whom.
struct RunFilesOptions {
  // How many steps are kept, at least 1. Two, so that there is one left if the
  // newest turns out to be damaged.
  TORCH_ARG(int64_t, keep) = 2;

  // Is told, in a line, what went wrong without being an error: a step that is
  // damaged and passed over, an old one that could not be removed.
  TORCH_ARG(std::function<void(const std::string&)>, report);

  TORCH_ARG(RunShard, shard);
};

// The states of one run.
//
//   gpipe::RunFiles files("/data/run7");
//   if (auto state = files.resume("auto")) { ... }  // put it in
//   for (...) {
//     ...
//     files.save(state);
//   }
//
// Whenever the process or the machine dies, the steps that were there are
// there, whole, and the one being saved is whole or not there: it is written
// under a temporary name, checksums last, and gets its own when all of it is on
// the disk. Whatever has become of the files since is noticed when they are
// loaded, and an older step is taken.
//
// Several processes share a folder (on one machine, or in a file system that
// all of them see). Each saves the names that it has, and loads those it asks
// for, which may be others: a state does not depend on how many processes have
// saved it. All of them make the same calls, and all of them return or all
// throw the same error.
//
// One run at a time may save into a folder. Threads: one at a time.
class RunFiles {
 public:
  // Of tensors: which of them to load.
  using Names = std::set<std::string>;

  // Makes nothing yet. c10::ValueError for options that cannot be.
  explicit RunFiles(std::string folder, RunFilesOptions options = {});

  // Saves a step; one that is there already is replaced. Then removes the steps
  // before it but for the last `keep`, itself included; damaged ones do not
  // count. Steps after it, which an earlier run may have left, stay.
  //
  // With several processes: `model` and `optimizer` are what this process has,
  // names that no other one has; `generators` those of each; `words` those of
  // the first.
  //
  // Errors: c10::ValueError for what cannot be written (see
  // weights/safetensors.h) or does not belong together; c10::Error with path
  // and reason if the disk is full or fails. The steps that were there are
  // untouched then, and nothing is left of the new one. With several processes
  // a c10::Error on all of them, which says whose it is.
  void save(const RunState& state);

  // The newest step that is whole; nullopt if none is. What is loaded is
  // compared with its checksums, and what is passed over is reported.
  //
  // `names`: the parameters and buffers to load, and the optimizer's state for
  // these; nullopt: all. Those that are not there are left out. Of generators,
  // what the process with the same index has saved, if they were as many, else
  // what the first has. Tensors are on the CPU.
  //
  // Errors: c10::ValueError if a step is of a later version of the format;
  // c10::Error if the folder cannot be listed.
  std::optional<RunState> load_latest(
      const std::optional<Names>& names = std::nullopt);

  // This step. c10::ValueError if it is not there or is damaged; it says how,
  // and which steps there are.
  RunState load(int64_t step, const std::optional<Names>& names = std::nullopt);

  // For a flag --resume: "auto" is load_latest(), "none" or "" is nullopt, a
  // number is that step. c10::ValueError for anything else.
  std::optional<RunState> resume(
      const std::string& how, const std::optional<Names>& names = std::nullopt);

  // Those that have a folder, whole or not, ascending.
  std::vector<int64_t> steps() const;

  // "/data/run7/step-000000000123".
  std::string folder_of(int64_t step) const;

 private:
  // body() on each process, then what all have returned, by index; or the error
  // of the first that has thrown, on all.
  std::vector<std::string> together(const std::function<std::string()>& body);
  void report(const std::string& line) const;

  std::vector<int64_t> common_steps();
  std::string damage_of(int64_t step, const std::optional<Names>& names,
                        std::optional<RunState>& state);
  void remove_old_steps(int64_t saved, const std::string& temporary);
  void remove_leftovers(int64_t step);

  const std::string folder_;
  RunFilesOptions options_;
};

}  // namespace gpipe
