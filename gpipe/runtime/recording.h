// When a run of a schedule did what.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

#include "gpipe/runtime/stamp.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Threads: each rank's entries belong to its worker while a schedule runs.
class Recording {
 public:
  // `devices`: of the ranks.
  explicit Recording(std::vector<c10::Device> devices);

  // All ranks begin. On the caller's thread.
  void begin();
  // Around each action of a rank, on its worker.
  void action_starts(std::size_t rank, const Action& action);
  void action_ends(std::size_t rank);

  // Waits until all has been done.
  Timeline timeline() const;

 private:
  struct Record {
    Action action;
    Stamp start, end;
  };
  std::vector<c10::Device> devices_;
  std::vector<Stamp> begin_;                  // by rank
  std::vector<std::vector<Record>> records_;  // by rank
};

}  // namespace gpipe
