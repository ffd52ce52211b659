// Marks on tensors, which make LibTorch ask us before an operator works on
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <utility>

#include "gpipe/placement/place.h"

namespace gpipe::placement {

// The dispatch key in a marked tensor's own key set. LibTorch keeps it for
// extensions that put tensors off (torchdistX did), and has no kernel for it.
// It comes before autograd and autocast, and after gpipe/dispatch. A tensor
// without it, on whichever thread, goes through LibTorch as if we did not
// exist.
constexpr c10::DispatchKey kPlacementKey = c10::DispatchKey::DeferredInit;

// What a mark says. It travels in the tensor's BackendMeta, which LibTorch
// hands on to shallow copies: detach(), data(), what autograd saves. Never
// changed.
struct Tag : c10::BackendMeta {
  enum class Kind {
    kWeight,    // a parameter or buffer, or computed from such alone
    kData,      // computed from other things too
    kGradient,  // data that backward has computed, or computed from such
  };

  Tag(PlacePtr place, Kind kind, bool direct)
      : place(std::move(place)), kind(kind), direct(direct) {}

  const PlacePtr place;  // of the module that owns the weight, made the data
  const Kind kind;
  // Of a weight: its module has no children and was itself parallelized, so
  // that an operator that takes it makes the module's output.
  const bool direct;
};

using TagPtr = c10::intrusive_ptr<Tag>;

// Null if there is none.
const Tag* tag_of(const at::Tensor& tensor);

// False if the tensor's backend keeps a BackendMeta of its own there.
bool set_tag(const at::Tensor& tensor, TagPtr tag);

void remove_tag(const at::Tensor& tensor);

}  // namespace gpipe::placement
