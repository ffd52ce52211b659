// Saves steps of a run on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "training/checkpoint/state_copy.h"
#include "training/checkpoint/step_writer.h"
#include "training/run_state.h"

namespace gpipe::internal {

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
