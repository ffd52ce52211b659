// Conversion of exceptions to RankFailures, and back.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "gpipe/distributed/error.h"

namespace gpipe::internal {

// Returns the first line of the text of an exception of LibTorch, without a
// backtrace and without the source location that some texts begin with.
std::string reason_of(const std::exception& error);

// Returns the whole text of an exception without a backtrace, for other ranks.
std::string cause_of(const std::exception_ptr& exception);

// encode_failure() returns a failure as at most kFailureBytes bytes; texts
// above 1500 bytes are cut. decode_failure() is the reverse. It returns some
// failure for any `bytes` and never throws.
constexpr std::size_t kFailureBytes = 3072;
std::string encode_failure(const RankFailure& failure);
RankFailure decode_failure(const std::string& bytes);

// Throws `failure` as a PeerError.
// `rank`: the rank of this process.
[[noreturn]] void throw_peer_error(const RankFailure& failure, int rank);

}  // namespace gpipe::internal
