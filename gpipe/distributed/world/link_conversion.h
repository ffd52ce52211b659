// Errors of connections as errors of LibTorch.
#pragma once

#include <c10/util/Exception.h>

#include "gpipe/distributed/links/link_error.h"

namespace gpipe::internal {

// Returns the result of `part`; a LinkError becomes a c10::DistNetworkError.
template <typename Part>
auto with_c10_errors(Part part) {
  try {
    return part();
  } catch (const LinkError& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  }
}

}  // namespace gpipe::internal
