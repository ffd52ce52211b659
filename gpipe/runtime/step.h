// The state of one mini-batch, and its two passes over the cells.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/grad_sum.h"
#include "gpipe/runtime/partition.h"
#include "gpipe/runtime/random.h"
#include "gpipe/runtime/stream.h"
#include "gpipe/runtime/transfer.h"

namespace gpipe {

// Where a skip tensor that leaves partition `from` as its `exported`-th goes.
struct SkipLink {
  int64_t from, exported, to, imported;
};

// What stays the same from step to step. Threads: entry j of a list is for
// partition j's worker while a pass runs.
struct Stages {
  std::vector<Partition> partitions;
  std::vector<Transfer> transfers;
  std::vector<SkipLink> links;

  explicit Stages(std::vector<Partition> partitions);
  int64_t size() const { return static_cast<int64_t>(partitions.size()); }
};

// Holds what backward needs of a forward.
struct Step {
  Step(Stages& stages, int64_t microbatches, int64_t checkpointed);

  int64_t microbatches() const {
    return static_cast<int64_t>(cells.front().size());
  }

  // Lists the leaves of all cells and numbers them.
  void number_leaves();

  StepSeed seed;
  at::ThreadLocalState caller;  // of forward
  // cells[j][i] is micro-batch i on partition j. (Cells do not move.)
  std::vector<std::deque<Cell>> cells;
  std::vector<at::Tensor> leaves;
  std::vector<int64_t> leaf_partition;  // the first that uses it
};

// Runs the forwards of a schedule.
class ForwardPass : public Actor {
 public:
  // `leaf_input`: the input is a leaf of the user's.
  ForwardPass(Stages& stages, Step& step, std::vector<Parcel> inputs,
              bool leaf_input);

  bool ready(const Action& action) override;
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // What the last partition made, by micro-batch.
  std::vector<Parcel>& outputs() { return outputs_; }

 private:
  // What waits for a cell. The boundary arrives last.
  struct Inbox {
    std::atomic<bool> full{false};
    Parcel parcel;
    Moment boundary_ready;
    std::vector<Moment> skip_ready;
  };

  Stages& stages_;
  Step& step_;
  bool leaf_input_;
  std::vector<std::deque<Inbox>> inboxes_;
  std::vector<Parcel> outputs_;
};

// Runs the recomputes and backwards of a schedule.
class BackwardPass : public Actor {
 public:
  // `grads`: of the outputs, by micro-batch. `input_wanted`: whether any
  // gradient of the input is. `leaf_wanted`: by leaf of the step.
  BackwardPass(Stages& stages, Step& step,
               std::vector<std::vector<at::Tensor>> grads, bool input_wanted,
               std::vector<bool> leaf_wanted, bool keep_graph);

  bool ready(const Action& action) override;
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // Of the input, by micro-batch.
  std::vector<std::vector<at::Tensor>>& input_grads() { return input_grads_; }
  // Of the step's leaves. Summed over micro-batches as the schedule ran them,
  // then over partitions, last first.
  std::vector<at::Tensor> take_leaf_grads();

 private:
  // The gradients that wait for a cell. Those of the boundary arrive last.
  struct Inbox {
    std::atomic<bool> full{false};
    GradParcel grads;
    Moment boundary_ready;
    std::vector<Moment> skip_ready;
  };

  GradParcel backward(int64_t j, int64_t i);

  Stages& stages_;
  Step& step_;
  std::vector<bool> leaf_wanted_;
  bool keep_graph_;
  // Partitions before this one have nothing to do.
  int64_t first_wanted_;
  bool input_wanted_;
  std::vector<std::deque<Inbox>> inboxes_;
  std::vector<GradSum> sums_;
  std::vector<std::vector<at::Tensor>> input_grads_;
};

}  // namespace gpipe
