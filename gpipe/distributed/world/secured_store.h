// c10d's store over secured connections.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gpipe/distributed/links/store_wire.h"

namespace gpipe::internal {

// Returns a store whose requests `call` answers. `call` is thread-safe and
// throws LinkError if the connection is broken; the store then throws
// c10::DistNetworkError. Waits do not block other callers.
c10::intrusive_ptr<c10d::Store> secured_store(
    std::function<StoreReply(const StoreRequest&)> call);

}  // namespace gpipe::internal
