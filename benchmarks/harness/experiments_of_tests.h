// Experiments of the harness's tests.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// Returns an experiment with these layers per partition; without a pipeline if
// there are none.
inline Experiment experiment_of(
    std::vector<int64_t> balance, int64_t batch_size, int64_t chunks,
    Checkpoint checkpoint = Checkpoint::kExceptLast) {
  Experiment result;
  result.partitions = static_cast<int64_t>(balance.size());
  result.balance = std::move(balance);
  result.batch_size = batch_size;
  result.chunks = chunks;
  result.checkpoint = checkpoint;
  return result;
}

}  // namespace gpipe::benchmarks
