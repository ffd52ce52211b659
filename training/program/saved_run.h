// The run checkpoints of a training run, and the flags in them.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "training/grad_scaler.h"
#include "training/program/engine.h"
#include "training/program/options.h"
#include "training/program/reports.h"
#include "training/program/task.h"
#include "training/run_files.h"

namespace gpipe::train_program {

// ---- Flags

// Flags ("--lr") and their values. Those in run checkpoints prevent a run from
// resuming with the flags of another run.
using FlagValues = std::map<std::string, std::string>;

// Return the flags that a run must keep when it resumes, with a checksum of the
// data, and those that it may change.
FlagValues fixed_flags(const Options& options, const Task& task);
FlagValues changeable_flags(const Options& options, const Task& task);

// Returns the flags that must be equal in all processes of a run: the fixed and
// the changeable flags, and those that control the loop. Instead of a path,
// which may differ between machines, it contains only whether one is given. For
// --model, it contains ModelSource::description().
FlagValues shared_flags(const Options& options, const Task& task);

// Returns a line for each flag that is not at its default although this run
// does not read it, because of its kind: "--keep=5 changes nothing: it needs
// --run_dir". Flags that mean nothing beside others are errors elsewhere.
std::vector<std::string> unused_flags(const Options& options,
                                      const ModelSource& source);

// Convert flags to a text for all_gather() and back.
std::string bytes_of(const FlagValues& flags);
FlagValues parse_flag_values(const std::string& bytes);

// Throws c10::ValueError if a flag differs between processes. `all`: the flags
// of each process, by rank. The text names each such flag, with its value in
// process 0 and in another process.
void check_same_flags(const std::vector<FlagValues>& all);

// Throws c10::ValueError if a flag in `saved` differs from `now`. The text
// names each such flag with both values. `folder`: where `saved` comes from.
void check_fixed_flags(const FlagValues& saved, const FlagValues& now,
                       const std::string& folder);

// Returns one line for each flag that differs between `saved` and `now`.
std::vector<std::string> changes(const FlagValues& saved,
                                 const FlagValues& now);

// Throws c10::ValueError in all processes if `mine` differs between them, see
// check_same_flags(). All processes call this.
void check_same_in_all(const RunProcesses& processes, const FlagValues& mine);

// ---- Run checkpoints

// The position of a run.
struct Standing {
  int64_t step = 0;  // steps done
  // The metrics of the last step if its evaluation has not been done yet.
  std::optional<std::map<std::string, double>> untested;
  // The losses, the steps and the training score since the last evaluation, of
  // all processes.
  Evaluation next;
};

// A reader and writer of the run checkpoints in Options::run_dir. With
// several processes, all make the same calls at the same time. Not thread-safe.
class SavedRun {
 public:
  // If Options::run_dir is empty, nothing is saved or resumed. `report`:
  // that of RunFilesOptions.
  SavedRun(const Options& options, const RunProcesses& processes,
           std::function<void(const std::string&)> report);

  bool saves() const { return files_.has_value(); }

  // Returns the flags of the step to resume from, or nullopt if there is none.
  // Loads no tensors of the model. Throws c10::ValueError if the wanted step
  // does not exist or is damaged, if all steps are damaged, or if there are
  // steps after the one to begin with (unless --resume=auto).
  std::optional<FlagValues> flags();

  // Loads the step to resume from, if there is one, and returns its position.
  // `scaler` may be null.
  //
  // Throws what RunFiles, load_state_dict() and load_optimizer_state() throw.
  // Throws c10::ValueError if flags() found a step but all are damaged.
  Standing load(Engine& engine, torch::optim::Optimizer& optimizer,
                GradScaler* scaler);

  // Throws what save() would throw for the model and the flags: a dtype that
  // the files lack, or a text that is not UTF-8. Writes nothing.
  void check(Engine& engine, const FlagValues& flags) const;

  // Saves a step, with the flags of the run. The model is that of the
  // first replica, and so is the optimizer, unless it is sharded. The random
  // states are those of each process. If adapters are trained, the step has no
  // frozen parameters, and the adapters are also written to RUN_DIR/adapter.
  // `in_background`: see RunFiles::save_in_background().
  void save(const Standing& standing, Engine& engine,
            const torch::optim::Optimizer& optimizer, const GradScaler* scaler,
            FlagValues flags, bool in_background);

  // Waits for a save in the background, and throws its error.
  void wait();

  std::string folder_of(int64_t step) const { return files_->folder_of(step); }

 private:
  void check_found(bool found) const;

  const Options options_;
  bool found_ = false;  // set by flags()
  std::optional<RunFiles> files_;
};

}  // namespace gpipe::train_program
