#include "gpipe/distributed/transfers.h"

#include <c10/util/Exception.h>

namespace gpipe {

Transfers parse_transfers(const std::string& name) {
  for (const Transfers each : {Transfers::kAuto, Transfers::kHost,
                               Transfers::kDirect, Transfers::kTested}) {
    if (name == to_string(each)) return each;
  }
  TORCH_CHECK_VALUE(false,
                    "transfers must be auto, host, direct or tested, not '",
                    name, "'");
}

}  // namespace gpipe
