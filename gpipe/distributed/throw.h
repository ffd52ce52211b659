// The one place where a RankFailure becomes an exception.
#pragma once

#include "gpipe/distributed/error.h"

namespace gpipe {

// `rank`: this one.
[[noreturn]] void throw_peer_error(const RankFailure& failure, int rank);

}  // namespace gpipe
