// A small pipeline that is made to fail, and how it is found afterwards.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/models.h"

namespace gpipe::faults {

struct Setting {
  // Of a train_step(), see named.h; empty: forward(), loss and backward().
  std::string schedule;
  int ranks = 1, stages_per_rank = 1;
  int microbatches = 1;
  Checkpoint mode = Checkpoint::kNever;
  bool deferred_batch_norm = false;
  // See GPipeOptions; the order of all that a step does is then its own.
  bool one_at_a_time = false;

  int stages() const { return ranks * stages_per_rank; }
  std::string describe() const;
};

// Of `schedules` on 1 to 4 partitions in one or two stages per rank, as they
// take them, with 1, 2, 3 and 5 micro-batches, in all modes; of these, those
// that there are.
std::vector<Setting> settings(const std::vector<std::string>& schedules);

// What a failed step has left that it should not have.
struct Residue {
  bool leak = false;   // bytes or threads
  bool wrong = false;  // a gradient, a statistic, or the bits of the next step
  std::string text;    // for people
};

// Four layers with a skip from the first to the last one, BatchNorm, dropout
// and linear layers, cut into the setting's stages, on the devices of the
// test's variant.
class Trial {
 public:
  explicit Trial(const Setting& setting);

  // Always from the same state: parameters, buffers, random numbers. `before`
  // is called when all is ready for the pipeline, and `after` when it has
  // returned and its gradients are there.
  testing::StepState step(
      const std::function<void()>& before = [] {},
      const std::function<void()>& after = [] {});

  // After step() has thrown and the exception is gone. Makes the next step.
  // `late`: a device has failed at work that it had taken, and what that should
  // have written is anything; so gradients and statistics are not looked at.
  Residue residue(bool late = false);

  const GPipe& pipeline() const { return pipeline_; }
  // What step() gives when nothing fails.
  const testing::StepState& undisturbed() const { return undisturbed_; }

 private:
  void restore();
  std::vector<torch::Tensor> buffers();
  bool settled();

  const Setting setting_;
  std::optional<Schedule> schedule_;
  GPipe pipeline_{nullptr};
  torch::Tensor input_, target_;
  std::vector<torch::Tensor> buffers_;  // as they were in the beginning
  testing::StepState undisturbed_;
  std::vector<int64_t> bytes_;  // between steps, by device
  int64_t threads_ = 0;
};

// Of the CPU's tensors, then of the accelerators' of the test's variant.
// Waits until all work is done.
std::vector<int64_t> live_bytes();
// Threads of this process.
int64_t thread_count();

}  // namespace gpipe::faults
