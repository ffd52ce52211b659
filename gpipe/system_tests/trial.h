// Runs a small pipeline that is made to fail, checks its state afterwards, and
// makes the operations of a step fail one after another.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/models.h"

namespace gpipe::faults {

// The configuration of a Trial.
struct Setting {
  // Schedule of a train_step(), see named.h. If empty, the step is forward(), a
  // loss and backward().
  std::string schedule;
  int ranks = 1, stages_per_rank = 1;
  int microbatches = 1;
  Checkpoint mode = Checkpoint::kNever;
  bool deferred_batch_norm = false;
  // Whether the schedule copies what cells keep for their backward to the host.
  bool offload = false;
  // See GPipeOptions. All operations of a step then have a fixed order.
  bool one_at_a_time = false;

  int stages() const { return ranks * stages_per_rank; }
  std::string describe() const;
};

// Returns settings with `schedules`, 1 to 4 partitions, one or two stages per
// rank, 1, 2, 3 and 5 micro-batches, and all checkpoint modes. With 2 and 5
// micro-batches, schedules offload. Sizes that a schedule does not support are
// left out.
std::vector<Setting> settings(const std::vector<std::string>& schedules);

// The number of threads of this process: those of the streams of simulated
// accelerators, which live as long as the process, and all others.
struct ThreadCount {
  int64_t streams = 0, others = 0;

  int64_t all() const { return streams + others; }
  std::string describe() const;
};
ThreadCount thread_count();

// Defects in the state after a failed step.
struct Residue {
  bool leak = false;   // bytes or threads are left
  bool wrong = false;  // a gradient, a statistic or the next step differs
  std::string text;    // for messages
};

// A pipeline of four layers, cut into the setting's stages, on the devices of
// the test's variant. The layers have a skip from the first to the last one,
// BatchNorm, dropout and linear layers.
class Trial {
 public:
  explicit Trial(const Setting& setting);

  // Runs a step, always from the same parameters, buffers and random numbers.
  // `before`: called just before the pipeline runs. `after`: called when the
  // pipeline has returned and the gradients exist.
  testing::StepState step(
      const std::function<void()>& before = [] {},
      const std::function<void()>& after = [] {});

  // Checks the state after step() has thrown and the exception is destroyed.
  // Runs the next step. `late`: a device failed in work that was already
  // queued. Memory that this work should have written is undefined then, so
  // gradients and statistics are not checked.
  Residue residue(bool late = false);

  const GPipe& pipeline() const { return pipeline_; }
  // The result of step() when nothing fails.
  const testing::StepState& undisturbed() const { return undisturbed_; }

 private:
  void restore();
  std::vector<torch::Tensor> buffers();
  bool settled();
  bool has_as_many_threads() const;
  bool has_new_host_buffers();

  const Setting setting_;
  std::optional<Schedule> schedule_;
  GPipe pipeline_{nullptr};
  torch::Tensor input_, target_;
  std::vector<torch::Tensor> buffers_;  // the initial values
  testing::StepState undisturbed_;
  std::vector<int64_t> bytes_;  // live bytes between steps, by device
  ThreadCount threads_;
  int64_t host_buffers_ = 0;  // made after bytes_ was read first
};

// Returns the live bytes of the CPU's tensors, then of those of each
// accelerator of the test's variant. Blocks until all work is done.
std::vector<int64_t> live_bytes();

// The counts of a sweep.
struct Sweep {
  int64_t failed = 0;    // operations that failed, one per step
  int64_t thrown = 0;    // steps that threw
  int64_t absorbed = 0;  // steps that did not need the operation
  int64_t in_cells = 0;  // failed operations in cells
  // Steps that threw an error without a place.
  int64_t unnamed = 0;
  // Should be 0. `misnamed` counts operations of cells whose error has another
  // place or none.
  int64_t misnamed = 0, leaks = 0, wrong = 0;

  void operator+=(const Sweep& other);
  // header() returns the column names of a table, row() a row of counts.
  static std::vector<std::string> header();
  std::vector<std::string> row(const std::string& name) const;
};

// A function that is called after each step, whether the step threw or not. It
// returns the errors that appear only then, such as an asynchronous failure of
// a device, or "".
using Settle = std::function<std::string()>;

// Makes every third operation of a step fail; successive sweeps begin at
// operation 0, 1 and 2. With GPIPE_THOROUGH=1 every operation fails.
//
// Reports defects as failures of the test, with the number of the operation.
// The trial must be one_at_a_time, so that operations have a fixed order.
// `late`: the error may appear at a later operation and then has another place.
// See also Trial::residue().
Sweep sweep(Trial& trial, instruments::FailNth& failing, const Settle& settle,
            bool late = false);

}  // namespace gpipe::faults
