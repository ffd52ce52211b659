// Cuts a test's model into the stages of a schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::testing {

// Returns the number of layers per stage, as even as possible.
inline std::vector<int64_t> cut(int64_t layers, int64_t stages) {
  std::vector<int64_t> balance;
  for (int64_t s = 0; s < stages; ++s) {
    balance.push_back((s + 1) * layers / stages - s * layers / stages);
  }
  return balance;
}

// Returns kV if the last stage of `schedule` is on the first rank, else kLoop.
inline Placement placement_of(const Schedule& schedule) {
  const std::vector<int> placed = rank_of_stage(schedule);
  const bool back = placed.size() > schedule.ranks.size() &&
                    schedule.ranks.size() > 1 && placed.back() == 0;
  return back ? Placement::kV : Placement::kLoop;
}

}  // namespace gpipe::testing
