// The writing of one step of a run, also on a thread of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "models/weights/run_shard.h"
#include "training/run_state.h"

namespace gpipe::internal {

// ---- One step

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
  // throws c10::ValueError if they do not fit together, or if an earlier save
  // of the step has a model, and none of its names is in this one.
  void complete(const std::vector<std::string>& parts);

  // Removes older steps until `keep` complete ones are left, this one included.
  // For the first process, after complete(). Reports errors and a later step,
  // and throws none.
  void remove_old_steps(int64_t keep, const Report& report);

 private:
  const std::string folder_;
  const int64_t step_;
  const RunShard shard_;
  std::string path_;
  bool made_ = false;  // by this process, and not yet complete
};

// ---- A copy of the state

// A copy of a state that does not change with the module and the optimizer. A
// second copy of the same tensors uses the memory of the first one, because
// fresh memory costs more time than the copy itself. Not thread-safe.
class StateCopy {
 public:
  // Copies all tensors of `state` to the CPU and returns the copy, which stays
  // valid until the next call. Tensors without values (undefined, or on the
  // meta device) are taken as they are. Waits for work on the tensors' devices.
  const RunState& update(const RunState& state);

 private:
  at::Tensor copied(const std::string& name, const at::Tensor& tensor);

  RunState state_;
  std::map<std::string, at::Tensor> memory_, next_memory_;
};

// ---- A thread that writes

// A thread that writes a step while training goes on. It exchanges no messages
// with other processes, since training does that at the same time: the first
// process finds the manifests of the others' parts in the step's folder. Not
// thread-safe.
class BackgroundSaver {
 public:
  BackgroundSaver() = default;
  ~BackgroundSaver();  // as finish()

  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Copies the state, starts to write it, and returns. `writer` has the name of
  // its folder. `keep`: as in RunFilesOptions. Not while is_busy().
  void start(std::unique_ptr<StepWriter> writer, const RunState& state,
             int64_t keep);

  // Returns whether a save was started and finish() was not called since.
  bool is_busy() const { return thread_.joinable(); }

  // Waits until the part of this process is on the disk. Throws the error of
  // writing it.
  void wait_written() { written_.get(); }

  // Waits until the step is complete, on the first process. Returns at once on
  // the others. Throws the error of completing it.
  void wait_complete() { complete_.get(); }

  // Stops to wait for the parts of other processes, and returns when the thread
  // has ended, with the lines to report. What is not complete then is removed.
  std::vector<std::string> finish();

 private:
  // Both for the first process. `mine`: the manifest of its part.
  void complete_step(const std::string& mine, int64_t keep);
  std::vector<std::string> parts_of_all(const std::string& mine);

  StateCopy copy_;
  std::unique_ptr<StepWriter> writer_;
  std::future<void> written_, complete_;
  std::atomic<bool> given_up_{false};
  std::vector<std::string> lines_;
  std::thread thread_;
};

}  // namespace gpipe::internal
