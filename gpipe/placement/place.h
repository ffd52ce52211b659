// Where the modules of a tree work.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <memory>
#include <optional>

namespace gpipe::placement {

// Of a module that was parallelized. Operators read it on any thread; it
// changes only while none of them runs.
struct Place {
  Place(c10::Device processing, std::optional<c10::Device> output)
      : processing(processing), output(output) {}

  const c10::Device processing;
  const std::optional<c10::Device> output;
  // The next module around this one that has one.
  std::shared_ptr<Place> parent;
  // Until the module is unparallelized. Tensors may outlive that.
  std::atomic<bool> active{true};
};

using PlacePtr = std::shared_ptr<Place>;

// The place itself or the nearest around it that is active; null if none is.
PlacePtr active_place(PlacePtr place);

// The innermost that contains both, which are active or null; null if there is
// none.
PlacePtr common_place(PlacePtr a, PlacePtr b);

// Where a value is expected that was made in `from` and has left it for
// `outer`: on the output device of the last module on the way out that has one.
std::optional<c10::Device> exit_device(PlacePtr from, const PlacePtr& outer);

}  // namespace gpipe::placement
