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

}  // namespace gpipe::placement
