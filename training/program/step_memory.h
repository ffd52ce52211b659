// The peak memory of steps beside the prediction of a plan, for --plan.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::train_program {

// The prediction for the ranks of this process on one device.
struct PlannedMemory {
  c10::Device device;
  std::vector<int64_t> ranks;  // of the pipeline, ascending
  double bytes = 0;            // the sum of their predicted peaks
};

// The bytes of tensors at the peaks of steps: parameters, buffers, the state of
// the optimizer, gradients, and what waits for backwards. Not counted: what the
// process held before, besides the module, such as a data set, and workspaces
// of operators that are not tensors. Not thread-safe.
class StepMemory {
 public:
  // Counts all tensors on CPUs that are made from now on. Their allocator is
  // replaced for the rest of the process. Call it before the model is made.
  static void count_cpu_tensors();

  // `module`: the layers of this process, which have no gradients yet.
  // `planned`: empty for no report.
  StepMemory(const torch::nn::Module& module,
             std::vector<PlannedMemory> planned);

  // Begin and end the part of a step whose peak counts.
  void begin();
  void end();

  // Returns a line per device, without line ends: the largest peak so far, and
  // the prediction.
  std::vector<std::string> lines() const;

 private:
  struct Place {
    PlannedMemory planned;
    // Bytes in use at construction, without the module.
    int64_t before = 0;
    int64_t peak = 0;
  };
  std::vector<Place> places_;
};

}  // namespace gpipe::train_program
