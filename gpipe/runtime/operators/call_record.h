// What the operators of one call have drawn and changed, for a second call.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace gpipe::internal {

// What the operators of one call of a function, or of the layers of a cell,
// have drawn and changed, so that a second call draws the same numbers, and
// changes neither running statistics nor counters. Filled by a RandomScope and
// a NormScope of the first call, and read by those of the second call.
struct CallRecord {
  // Returns whether a tensor gets its value of the first call for the second
  // one, and that of now afterwards. Empty: there is no second call.
  std::function<bool(const at::Tensor&)> is_restored;

  // The state of the generator of a device before the first draw from it; none
  // in a cell, which seeds its generators itself.
  struct Start {
    c10::Device device;
    at::Generator before;
  };
  std::vector<Start> starts;
  // The generators that layers have passed to operators, each with a copy from
  // before the call of the operator.
  struct Given {
    at::Generator generator, before;
  };
  std::vector<Given> given;

  // For each BatchNorm call of a function in training mode with running
  // statistics, in order: whether the operator was called without them
  // (deferred BatchNorm).
  std::vector<bool> deferred;
  // The running statistics that operators of the first call have changed, or
  // that deferred BatchNorm changes later. LibTorch does not raise their
  // versions. If they are not restored, BatchNorm layers of the second call
  // work on copies of them.
  std::vector<at::Tensor> statistics;
  // The scalars to which the first call has added a number in place, such as
  // num_batches_tracked, and their values before, if they are not restored
  // anyway. To be restored around the second call.
  struct Counter {
    at::Tensor tensor, before;
  };
  std::vector<Counter> counters;
};

}  // namespace gpipe::internal
