// How LibTorch's operators draw random numbers, and the interceptors that make
// them draw from the generator of the cell (random.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace gpipe::internal {

// The way by which an operator gets random numbers.
enum class Draw {
  // A `generator` argument. An empty one is filled.
  kGenerator,
  // The state of its device's default generator, which is exchanged for that
  // of the cell's generator during the call.
  kDefaultGenerator,
  // A `dropout_state` tensor, which is made from a seed of the cell. cuDNN
  // would use one per device, which changes with each call of any thread.
  kDropoutState,
  // Other operators that it calls, and that are intercepted themselves.
  kCallees,
  // It draws nothing although it has the tag nondeterministic_seeded, or it
  // does not exist in the builds of LibTorch that gpipe supports.
  kNothing,
  // Nothing is known about it: numbers of a recompute may differ.
  kUnknown,
};

// Returns how `op` draws. For operators without the tag
// nondeterministic_seeded and without a generator argument: kNothing.
// Thread-safe.
Draw draw_of(const c10::OperatorHandle& op);

}  // namespace gpipe::internal
