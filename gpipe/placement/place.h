// The devices of parallelized modules, and the tags on tensors that name them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "gpipe/libtorch/tensor_tag.h"

namespace gpipe::placement {

// ---- The devices of parallelized modules.

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

// ---- Tags on tensors. They make LibTorch call gpipe before an operator runs
// on a tagged tensor.

// The dispatch key in a tagged tensor's own key set. LibTorch reserves it for
// extensions that defer the initialisation of tensors (torchdistX did), and has
// no kernel for it. It comes before autograd and autocast, and after
// gpipe/libtorch.
constexpr c10::DispatchKey kPlacementKey = c10::DispatchKey::DeferredInit;

// The content of a tag; immutable.
struct Tag : internal::TensorTag<Tag, kPlacementKey> {
  enum class Kind {
    kWeight,    // a parameter or buffer, or computed from such tensors alone
    kData,      // computed from other tensors, too
    kGradient,  // computed by backward, or from such tensors
  };

  Tag(PlacePtr of, Kind what, bool is_direct)
      : place(std::move(of)), kind(what), direct(is_direct) {}

  const PlacePtr place;  // of the module that owns the weight or made the data
  const Kind kind;
  // For weights: true if the module has no children and was itself
  // parallelized. Then an operator that uses the weight makes the module's
  // output.
  const bool direct;
};

}  // namespace gpipe::placement
