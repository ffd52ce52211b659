// From exceptions to failures, and back.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "gpipe/distributed/error.h"

namespace gpipe {

// What an exception of LibTorch's or Gloo's says, in a line: without the place
// in their sources, which Gloo begins with, and without a backtrace.
std::string reason_of(const std::exception& error);

// All that an exception says, to be told to other ranks.
std::string cause_of(const std::exception_ptr& exception);

// A failure in at most kFailureBytes, and back; whatever the bytes, decoding
// them gives a failure. Long texts are cut.
constexpr std::size_t kFailureBytes = 3072;
std::string encode_failure(const RankFailure& failure);
RankFailure decode_failure(const std::string& bytes);

// `rank`: this one.
[[noreturn]] void throw_peer_error(const RankFailure& failure, int rank);

}  // namespace gpipe
