// c10d's store and group of ranks over secured connections.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gpipe/distributed/links/mesh.h"
#include "gpipe/distributed/links/store_wire.h"

namespace gpipe::internal {

// Returns a store whose requests `call` answers. `call` is thread-safe and
// throws LinkError if the connection is broken; the store then throws
// c10::DistNetworkError. Waits do not block other callers.
c10::intrusive_ptr<c10d::Store> secured_store(
    std::function<StoreReply(const StoreRequest&)> call);

// Returns a group of all ranks with sends and receives, and without collective
// operations. The constructor's errors of Mesh become c10::DistNetworkError,
// and those of transfers, too. A wait() without a timeout has no limit.
c10::intrusive_ptr<c10d::Backend> secured_group(const MeshOptions& options);

}  // namespace gpipe::internal
