// LibTorch's own profilers for programs in C++.
#pragma once

#include <string>

namespace gpipe {

// A run of Kineto, the profiler behind torch.profiler in Python, from
// construction to stop(). It records each operator on any thread, and each
// action of a pipeline as a range "gpipe 1F0" around the action's operators.
// With CUDA it also records the kernels.
//
//   {
//     gpipe::KinetoTrace trace("kineto.json");
//     pipeline->train_step(data, target, loss, schedule);
//   }
//
// Each operator takes some microseconds longer, so the times of small operators
// are not reliable. For the times of a step, and why ranks wait, see
// training/trace.h.
//
// Threads: create and stop it on the thread that calls the pipeline. Only one
// profiler can run at a time.
class KinetoTrace {
 public:
  // Returns whether this LibTorch was built with Kineto. Official builds are.
  static bool is_available();

  // Starts the profiler. Throws c10::Error if LibTorch has no Kineto, if the
  // file cannot be written (with the path and the reason), or if a profiler
  // already runs: one of these on any thread, or that of other code on this
  // thread.
  explicit KinetoTrace(std::string path);

  // Calls stop() and ignores errors.
  ~KinetoTrace();

  KinetoTrace(const KinetoTrace&) = delete;
  KinetoTrace& operator=(const KinetoTrace&) = delete;

  // Stops the profiler and writes the file, for ui.perfetto.dev and
  // chrome://tracing. The file lacks the work that accelerators have not
  // finished: synchronize them first. A second call does nothing. Throws
  // c10::Error if the file cannot be written.
  void stop();

 private:
  const std::string path_, part_;
  bool running_ = false;
};

// NVTX ranges for Nsight Systems from construction to destruction: one for each
// operator and each action, named as in KinetoTrace. Does the same as
// torch.autograd.profiler.emit_nvtx in Python. Not tried on a GPU yet.
// Threads: create and destroy it on the thread that calls the pipeline.
class NvtxRanges {
 public:
  // Returns whether the program is linked to a LibTorch with CUDA.
  static bool is_available();

  // Throws c10::Error if NVTX is not available or if a profiler already runs,
  // as KinetoTrace does.
  NvtxRanges();
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;
};

}  // namespace gpipe
