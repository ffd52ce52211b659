// Writes one step of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/weights/run_shard.h"
#include "training/run_state.h"

namespace gpipe::internal {

// The folder of a step while it is written, under a temporary name. The first
// process begins, all processes write their parts, the first process completes.
// The destructor removes what has not become a step.
//
// Each function throws c10::Error, with the path and the reason, if the file
// system fails. Not thread-safe.
class StepWriter {
 public:
  using Report = std::function<void(const std::string&)>;

  // Creates no files. `shard`: its all_gather is not used.
  StepWriter(std::string folder, int64_t step, RunShard shard);
  ~StepWriter();

  StepWriter(const StepWriter&) = delete;
  StepWriter& operator=(const StepWriter&) = delete;

  const RunShard& shard() const { return shard_; }

  // Removes what dead processes have left, creates the temporary folder, and
  // returns its name. For the first process. `report`: called with a line about
  // a folder that cannot be removed.
  std::string begin(const Report& report);

  // Sets the name that begin() returned on the first process.
  void set_name(const std::string& name);

  // Returns the path of the temporary folder. Needs its name.
  const std::string& path() const { return path_; }

  // Writes the files of this process and returns the text of their manifest.
  // Also throws c10::ValueError if the state cannot be written.
  std::string write_part(const RunState& state);

  // Writes the manifest of all parts and gives the folder its final name. For
  // the first process. `parts`: the results of write_part(), by process. Also
  // throws c10::ValueError if they do not fit together.
  void complete(const std::vector<std::string>& parts);

  // Removes older steps until `keep` complete ones are left, this one included.
  // For the first process, after complete(). Reports errors and throws none.
  void remove_old_steps(int64_t keep, const Report& report);

 private:
  const std::string folder_;
  const int64_t step_;
  const RunShard shard_;
  std::string path_;
  bool made_ = false;  // by this process, and not yet complete
};

}  // namespace gpipe::internal
