#include "gpipe/placement/place.h"

namespace gpipe::placement {

PlacePtr active_place(PlacePtr place) {
  while (place && !place->active) place = place->parent;
  return place;
}

PlacePtr common_place(PlacePtr a, PlacePtr b) {
  for (; a; a = active_place(a->parent)) {
    for (PlacePtr other = b; other; other = active_place(other->parent)) {
      if (a == other) return a;
    }
  }
  return nullptr;
}

std::optional<c10::Device> exit_device(PlacePtr from, const PlacePtr& outer) {
  std::optional<c10::Device> device;
  for (; from && from != outer; from = active_place(from->parent)) {
    if (from->output) device = from->output;
  }
  return device;
}

namespace {

// TensorImpl has no function that adds a custom key to an existing tensor. Its
// subclasses may access the key set.
struct Keys : c10::TensorImpl {
  static c10::DispatchKeySet& of(c10::TensorImpl& tensor) {
    return tensor.*(&Keys::key_set_);
  }
};

}  // namespace

const Tag* tag_of(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kPlacementKey)) return nullptr;
  // A view has the keys of its base, but not its BackendMeta.
  return dynamic_cast<const Tag*>(impl->get_backend_meta());
}

bool can_have_tag(const at::Tensor& tensor) {
  c10::BackendMeta* const other =
      tensor.unsafeGetTensorImpl()->get_backend_meta();
  return !other || dynamic_cast<Tag*>(other);
}

bool set_tag(const at::Tensor& tensor, TagPtr tag) {
  if (!can_have_tag(tensor)) return false;
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_backend_meta(std::move(tag));
  auto& keys = Keys::of(*impl);
  keys = keys.add(kPlacementKey);
  return true;
}

void remove_tag(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  auto& keys = Keys::of(*impl);
  keys = keys.remove(kPlacementKey);
  if (dynamic_cast<Tag*>(impl->get_backend_meta())) {
    impl->set_backend_meta(nullptr);
  }
}

}  // namespace gpipe::placement
