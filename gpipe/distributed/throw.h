// From exceptions to failures, and back.
#pragma once

#include <exception>
#include <string>

#include "gpipe/distributed/error.h"

namespace gpipe {

// What an exception of LibTorch's or Gloo's says, in a line: without the place
// in their sources, which Gloo begins with, and without a backtrace.
std::string reason_of(const std::exception& error);

// `rank`: this one.
[[noreturn]] void throw_peer_error(const RankFailure& failure, int rank);

}  // namespace gpipe
