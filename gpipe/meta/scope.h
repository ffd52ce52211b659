// Operators that are run for the shapes of what they return.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>
#include <utility>

#include "gpipe/dispatch/interceptor.h"

namespace gpipe {

// While in scope, operators on this thread make tensors on the meta device,
// which have a shape, strides and a dtype, and no memory. Scopes may nest; the
// innermost counts.
class MetaScope {
 public:
  enum class Extent {
    // Those that are made from nothing (at::empty, at::zeros, at::randn, ...)
    // on no device in particular. All else is as ever.
    kNewTensors,
    // All: a tensor that is not on the meta device is only looked at, and
    // neither read nor written; what requires a gradient gets a graph.
    // Operators that tell the host something, as
    // item() does, are done if they ask for nothing on the meta device.
    kAllTensors,
  };

  explicit MetaScope(Extent extent);
  ~MetaScope();
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

  // For the interceptor of all operators. The innermost scope, or null.
  static MetaScope* current();
  // Changes the arguments on the stack.
  void divert(const c10::OperatorHandle& op, torch::jit::Stack* stack);

 private:
  void divert_factory(const c10::OperatorHandle& op, c10::IValue& device);
  at::Tensor stand_in(const at::Tensor& tensor);

  const Extent extent_;
  // With what they stand for, which is kept so that no other takes its place.
  std::unordered_map<const at::TensorImpl*, std::pair<at::Tensor, at::Tensor>>
      stand_ins_;
  MetaScope* const outer_;
  InterceptScope intercept_;
};

}  // namespace gpipe
