// Copies between devices, with their times.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "gpipe/runtime/stamp.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Threads: one at a time.
struct CopyLog {
  struct Copy {
    Action made_by;
    double bytes = 0;
    // The device that it leaves, or the other one if only that has streams: on
    // its stream the copy has all it waits for, and has been done.
    c10::Device from;
    Stamp start, sent;
    // Where it goes to: it can be used.
    c10::Device to;
    Stamp end;
  };

  // What the next copies are of; a gradient is of a whole backward.
  Action made_by;
  std::vector<Copy> copies;
};

}  // namespace gpipe
