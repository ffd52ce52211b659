// The transport that the ranks have agreed on.
#pragma once

#include <string>

#include "gpipe/distributed/channel/transfers.h"

namespace gpipe::internal {

struct TransportChoice {
  Transfers transfers = Transfers::kHost;  // kHost or kDirect
  std::string reason;                      // the same on all ranks
};

}  // namespace gpipe::internal
