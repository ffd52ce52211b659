// The state of an optimizer in the memory of the host between its steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <unordered_map>

namespace gpipe {

// Keeps the tensors of an optimizer's state (the moments of Adam, ...) on the
// host while the optimizer does not step, so that the accelerators have that
// memory for activations:
//
//   gpipe::StateOnHost on_host(optimizer);
//   ...
//   on_host.fetch();
//   optimizer.step();
//   on_host.store();
//
// Gives the same bits. Costs two copies of the state per step, through memory
// of the host (pinned for CUDA) that is used again. State of parameters on the
// CPU stays where it is. Not thread-safe.
class StateOnHost {
 public:
  // `optimizer`: of a type that optimizer_state() takes (optimizer_state.h),
  // else fetch() and store() throw c10::TypeError. Must outlive this.
  explicit StateOnHost(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer) {}

  // Copies the state to the devices of the parameters. Does nothing for tensors
  // that are there.
  void fetch();

  // Copies the state to the host and frees the memory on the devices. Blocks
  // until the copies are done.
  void store();

 private:
  torch::optim::Optimizer& optimizer_;
  // A tensor that fetch() has made on a device, and its memory on the host.
  struct Fetched {
    at::Tensor there, host;
  };
  std::unordered_map<const c10::TensorImpl*, Fetched> fetched_;
};

}  // namespace gpipe
