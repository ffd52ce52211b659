// Copies between devices, with their times.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

#include "gpipe/runtime/device/stamp.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// A log of copies between devices. Not thread-safe.
struct CopyLog {
  struct Copy {
    Action made_by;
    double bytes = 0;
    // The source device of the copy; the target device if the source has no
    // streams. `start`: when the copy has all that it waits for. `sent`: when
    // the copy is done. Both are taken on the stream of `from`.
    c10::Device from;
    Stamp start, sent;
    // The target device. `end`: when the copy can be used there.
    c10::Device to;
    Stamp end;
  };

  // A copy to the host (O) or back (L). The times are taken on the stream of
  // the copy. `place`: as in gpipe::HostCopy.
  struct ToOrFromHost {
    Action action;
    std::size_t place = 0;
    Stamp start, end;
  };

  // The action that made the tensors of the next copies. A gradient counts as
  // made by a whole backward (ActionKind::kBackward).
  Action made_by;
  std::vector<Copy> copies;
  // The `place` of the next copies to and from the host; set by the executor.
  std::size_t place = 0;
  std::vector<ToOrFromHost> host_copies;
};

}  // namespace gpipe::internal
