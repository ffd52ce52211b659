// The saved steps of a run: the training's state in, and out.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/engine.h"
#include "trainer/options.h"
#include "trainer/run_words.h"
#include "training/grad_scaler.h"
#include "training/run_files.h"

namespace gpipe::trainer {

// Where a run stands.
struct Standing {
  int64_t step = 0;  // how many have been made
  // What was measured in the last one, if a test of it is still to be made.
  std::optional<std::map<std::string, double>> untested;
};

// Of several processes, all make the same calls at the same time.
class SavedRun {
 public:
  using AllGather =
      std::function<std::vector<std::string>(const std::string& mine)>;

  // LoopOptions::run_dir "": nothing is saved, and there is nothing to go on
  // from. `report`: is told what is damaged and passed over.
  SavedRun(const LoopOptions& options, int rank, int ranks,
           AllGather all_gather,
           std::function<void(const std::string&)> report);

  bool saves() const { return files_.has_value(); }

  // What the step to go on from says of itself, before anything of it is
  // loaded; nothing if there is none. c10::ValueError for a step that is not
  // there, or after which there are others, or if all are damaged.
  std::optional<Words> words();

  // Puts that step in, if there is one, and returns where it stands. `scaler`
  // may be null.
  //
  // Errors: those of RunFiles, load_state_dict() and load_optimizer_state();
  // c10::ValueError if words() has found one, and all turn out damaged.
  Standing load(Engine& engine, torch::optim::Optimizer& optimizer,
                GradScaler* scaler);

  // Of the first replica; with the words of the run.
  void save(const Standing& standing, Engine& engine,
            const torch::optim::Optimizer& optimizer, const GradScaler* scaler,
            Words words);

  std::string folder_of(int64_t step) const { return files_->folder_of(step); }

 private:
  void check_found(bool found) const;

  const std::string how_;
  const std::string folder_;
  bool found_ = false;  // by words()
  std::optional<RunFiles> files_;
};

}  // namespace gpipe::trainer
