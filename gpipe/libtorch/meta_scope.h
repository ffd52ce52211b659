// Runs operators for the shapes of their results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>
#include <utility>

#include "gpipe/libtorch/dispatcher.h"

namespace gpipe {

// A scope in which operators on this thread make tensors on the meta device.
// Such tensors have a shape, strides and a dtype, but no memory. Scopes may
// nest; only the innermost one acts.
class MetaScope {
 public:
  enum class Extent {
    // Acts on operators that make tensors from nothing (at::empty, at::zeros,
    // at::randn, ...) and name no device. All other operators run as usual.
    kNewTensors,
    // Acts on all operators. Of a tensor that is not on the meta device, only
    // shape and dtype are used; its values are neither read nor written.
    // Results get a graph if an input requires grad. Operators that return a
    // value to the host, such as item(), run as usual unless an argument is on
    // the meta device.
    kAllTensors,
  };

  explicit MetaScope(Extent extent);
  ~MetaScope();
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

  // Changes the arguments on the stack, so that `op` runs on the meta device.
  // For the interceptor.
  void divert(const c10::OperatorHandle& op, torch::jit::Stack* stack);

 private:
  void divert_factory(const c10::OperatorHandle& op, c10::IValue& device);
  at::Tensor stand_in(const at::Tensor& tensor);

  const Extent extent_;
  // Meta tensors by the tensors that they replace. The originals are kept, so
  // that no new tensor gets the same address.
  std::unordered_map<const at::TensorImpl*, std::pair<at::Tensor, at::Tensor>>
      stand_ins_;
  MetaScope* const outer_;
  internal::InterceptScope intercept_;
};

}  // namespace gpipe
