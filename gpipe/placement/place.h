// The devices of parallelized modules.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <memory>
#include <optional>

namespace gpipe::placement {

// The devices of one parallelized module.
//
// Threads: operators on any thread may read it. It may change only while no
// operator on such modules runs.
struct Place {
  Place(c10::Device processing_device, std::optional<c10::Device> output_device)
      : processing(processing_device), output(output_device) {}

  const c10::Device processing;
  const std::optional<c10::Device> output;
  // The place of the next parallelized module around this one, or null.
  std::shared_ptr<Place> parent;
  // False once the module is unparallelized. Tensors may still refer to it
  // then.
  std::atomic<bool> active{true};
};

using PlacePtr = std::shared_ptr<Place>;

// Returns `place` or the nearest active place around it; null if there is none.
PlacePtr active_place(PlacePtr place);

// Returns the innermost place that contains both; null if there is none. `a`,
// `b`: active or null.
PlacePtr common_place(PlacePtr a, PlacePtr b);

// Returns the device where rule 4 expects a value that was made in `from` and
// is used in `outer`. This is the output device of the outermost module between
// the two that has one, or nullopt if none has one.
std::optional<c10::Device> exit_device(PlacePtr from, const PlacePtr& outer);

}  // namespace gpipe::placement
