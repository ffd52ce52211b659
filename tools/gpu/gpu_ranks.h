// A check of a pipeline of several processes, one rank per accelerator.
#pragma once

#include <string>

#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "tools/gpu/gpu_checks.h"

namespace gpipe::tools {

struct RankCheckOptions {
  Transfers transfers = Transfers::kHost;

  // Where the last rank ends itself with SIGKILL: "connected", after the
  // connection; "built", after the constructor of the pipeline; "forward", in
  // its first forward. Empty: nowhere.
  std::string die_at;

  // A shell command that rank 0 runs after the steps, while all processes still
  // use their devices. Empty: none.
  std::string at_end;
};

// Runs 10 training steps of one shape and 5 of another one, and compares losses
// and gradients of this rank's layers with those of GPipe on this rank's device
// alone. Fails if a bit differs. All ranks of a launcher call it.
//
// With `die_at`, passes if the failure that this rank is told names the last
// rank, and fails if there is none.
//
// Throws c10::ValueError if `die_at` is unknown, or if the world has one rank;
// PeerError if another rank fails without `die_at`.
CheckResult check_ranks(const WorldOptions& world,
                        const RankCheckOptions& options);

}  // namespace gpipe::tools
