// The messages of one rank by c10d's ProcessGroupGloo.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gpipe/distributed/world/rank_group.h"

namespace gloo::transport {
class Device;
}

namespace gpipe::internal {

// The socket on which Gloo listens, and the thread that serves its connections.
// Several groups may share it.
using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

// Returns a device that listens on the interface of `address` only. Throws
// c10::Error or a std::exception of Gloo if there is none.
GlooDevice gloo_device(const std::string& address);

// Returns a group of all ranks that makes a Gloo group of two for each pair of
// ranks that exchanges something.
//
// send() and recv() block until there is a connection. Their errors are those
// of ProcessGroupGloo; std::runtime_error if connecting was stopped.
//
// `store`: for the addresses, with a prefix for this group. All ranks have the
// same.
// `timeout`: of the making of a connection.
c10::intrusive_ptr<RankGroup> gloo_group(c10::intrusive_ptr<c10d::Store> store,
                                         GlooDevice device, int rank, int size,
                                         std::chrono::milliseconds timeout);

}  // namespace gpipe::internal
