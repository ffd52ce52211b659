// LibTorch's own profilers, for programs in C++.
#pragma once

#include <string>

namespace gpipe {

// Kineto, what torch.profiler is in Python, while this lives: each operator, on
// whichever thread, and each action of a pipeline as a range "gpipe 1F0" around
// its operators; with CUDA also the kernels.
//
//   {
//     gpipe::KinetoTrace trace("kineto.json");
//     pipeline->train_step(data, target, loss, schedule);
//   }
//
// It costs some microseconds for every operator, so times of small operators
// are not to be believed: for the times of a step, and why ranks wait, see
// training/trace.h.
//
// Threads: made and stopped on one thread, which is the one that calls the
// pipeline. There is one profiler at a time.
class KinetoTrace {
 public:
  // Whether this LibTorch has Kineto; its own builds have.
  static bool is_available();

  // Starts. c10::Error if there is no Kineto, if the file cannot be written,
  // with the path and the reason, and if a profiler is at work already.
  explicit KinetoTrace(std::string path);

  // As stop(), without a word about errors.
  ~KinetoTrace();

  KinetoTrace(const KinetoTrace&) = delete;
  KinetoTrace& operator=(const KinetoTrace&) = delete;

  // Ends it and writes the file, for ui.perfetto.dev and chrome://tracing. Work
  // that accelerators still have to do is not in it: synchronize them first.
  // Nothing the second time. c10::Error if the file cannot be written.
  void stop();

 private:
  const std::string path_, part_;
  bool running_ = false;
};

// Ranges in NVTX, for Nsight Systems, while this lives: of each operator and of
// each action, with names as above. What torch.autograd.profiler.emit_nvtx is
// in Python; has not been run on a GPU yet. Threads: as above.
class NvtxRanges {
 public:
  // Whether LibTorch has CUDA, and the program is linked to that.
  static bool is_available();

  // c10::Error if it is not available, or if a profiler is at work already.
  NvtxRanges();
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;
};

}  // namespace gpipe
