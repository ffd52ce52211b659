// How tests cut models into the stages of a schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::testing {

// Layers per stage, as evenly as they can be.
inline std::vector<int64_t> cut(int64_t layers, int64_t stages) {
  std::vector<int64_t> balance;
  for (int64_t s = 0; s < stages; ++s) {
    balance.push_back((s + 1) * layers / stages - s * layers / stages);
  }
  return balance;
}

// That of a schedule whose last stage comes back to the first rank is kV.
inline Placement placement_of(const Schedule& schedule) {
  const std::vector<int> placed = rank_of_stage(schedule);
  const bool back = placed.size() > schedule.ranks.size() &&
                    schedule.ranks.size() > 1 && placed.back() == 0;
  return back ? Placement::kV : Placement::kLoop;
}

}  // namespace gpipe::testing
