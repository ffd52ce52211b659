// The run checkpoints of a training run.
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
#include "training/program/run_flags.h"
#include "training/run_files.h"

namespace gpipe::train_program {

// The position of a run.
struct Standing {
  int64_t step = 0;  // steps done
  // The metrics of the last step if its evaluation has not been done yet.
  std::optional<std::map<std::string, double>> untested;
};

// A reader and writer of the run checkpoints in Options::run_dir. With
// several processes, all make the same calls at the same time. Not thread-safe.
class SavedRun {
 public:
  using AllGather =
      std::function<std::vector<std::string>(const std::string& mine)>;

  // If Options::run_dir is empty, nothing is saved or resumed. `report`:
  // called with a line about each damaged step that is skipped.
  SavedRun(const Options& options, int rank, int ranks, AllGather all_gather,
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

  const std::string how_;
  const std::string folder_;
  const Options options_;
  bool found_ = false;  // set by flags()
  std::optional<RunFiles> files_;
};

}  // namespace gpipe::train_program
