#include "gpipe/runtime/run/caught.h"

#include <c10/util/Exception.h>

#include <exception>

namespace gpipe::internal {

Failure at_partition(int64_t partition, Phase phase) {
  return {partition, Failure::kAll, phase, "", ""};
}

Failure caught_at(Failure place) {
  try {
    throw;
  } catch (c10::Error& error) {
    place.what = error.what_without_backtrace();
    error.add_context("in " + place.place());
  } catch (const std::exception& error) {
    place.what = error.what();
  } catch (...) {
  }
  return place;
}

}  // namespace gpipe::internal
