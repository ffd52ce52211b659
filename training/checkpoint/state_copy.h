// A copy of a run's state in the memory of the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "training/run_state.h"

namespace gpipe::internal {

// A copy of a state that does not change with the module and the optimizer. A
// second copy of the same tensors uses the memory of the first one, because
// fresh memory costs more time than the copy itself. Not thread-safe.
class StateCopy {
 public:
  // Copies all tensors of `state` to the CPU and returns the copy, which stays
  // valid until the next call. Tensors without values (undefined, or on the
  // meta device) are taken as they are. Waits for work on the tensors' devices.
  const RunState& update(const RunState& state);

 private:
  at::Tensor copied(const std::string& name, const at::Tensor& tensor);

  RunState state_;
  std::map<std::string, at::Tensor> memory_, next_memory_;
};

}  // namespace gpipe::internal
