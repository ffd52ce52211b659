// The state of one mini-batch.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/failure.h"
#include "gpipe/runtime/partition.h"
#include "gpipe/runtime/random.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Where a skip tensor that leaves partition `from` as its `exported`-th goes.
struct SkipLink {
  int64_t from, exported, to, imported;
};

// What stays the same from step to step. Threads: entry j of a list is for
// partition j's worker while a pass runs.
struct Stages {
  std::vector<Partition> partitions;
  std::vector<Transport> transports;
  std::vector<SkipLink> links;

  explicit Stages(std::vector<Partition> partitions);
  int64_t size() const { return static_cast<int64_t>(partitions.size()); }
};

// A leaf, and its number in the list of each partition that uses it, first
// partition first.
struct SharedLeaf {
  at::Tensor tensor;
  std::vector<std::pair<int64_t, int64_t>> places;  // partition, number
};

// Holds what backward needs of a forward.
struct Step {
  // `checkpointed`: of a cell, by stage and micro-batch. `before`: how many
  // micro-batches other pipelines have that share the step's random numbers,
  // and come before these.
  Step(Stages& stages, int64_t microbatches,
       const std::function<bool(int64_t, int64_t)>& checkpointed,
       int64_t before = 0);

  int64_t microbatches() const { return microbatches_; }

  // Numbers the leaves of cell (i, j), once it has run. c10::Error if its graph
  // has nodes that another partition's has, too. Threads: partition j's worker.
  void number_leaves(int64_t j, int64_t i);

  // Whether a leaf of partition j is one of another partition too. Threads:
  // any, once all forwards have run.
  bool is_shared(int64_t j, const at::Tensor& leaf) const;

  // Of all partitions. Threads: while no pass runs.
  std::vector<SharedLeaf> shared_leaves() const;

  // Where in `action` something went wrong just now; `what` is not filled in.
  Failure failure_at(const Action& action, Phase phase) const;

  StepSeed seed;
  at::ThreadLocalState caller;  // of forward
  // cells[j][i] is micro-batch i on partition j, if that is not elsewhere.
  // (Cells do not move.)
  std::vector<std::deque<Cell>> cells;

  struct Leaves {
    std::vector<at::Tensor> list;
    std::unordered_map<at::TensorImpl*, int64_t> numbers;
  };
  std::vector<Leaves> leaves;  // by partition

 private:
  void claim(int64_t j, std::vector<NodePtr> nodes);

  const int64_t microbatches_;

  // Captured graphs, and which partition goes through each.
  std::mutex claims_mutex_;
  std::unordered_map<NodePtr, int64_t> claims_;
};

}  // namespace gpipe
