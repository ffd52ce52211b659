#include "gpipe/schedule/placement.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace gpipe {

std::vector<int> place_stages(int stages, int ranks, Placement placement) {
  std::vector<int> result;
  for (int stage = 0; stage < stages; ++stage) {
    const bool back = placement == Placement::kV && stage / ranks % 2 == 1;
    const int place = stage % ranks;
    result.push_back(back ? ranks - 1 - place : place);
  }
  return result;
}

int num_stages(const Schedule& schedule) {
  int result = 0;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      result = std::max(result, action.stage + 1);
    }
  }
  return result;
}

int num_microbatches(const Schedule& schedule) {
  int result = 0;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      result = std::max(result, action.microbatch + 1);
    }
  }
  return result;
}

std::vector<int> rank_of_stage(const Schedule& schedule) {
  std::vector<int> result(num_stages(schedule), -1);
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (const Action& action : schedule.ranks[r]) {
      if (action.stage < 0) {
        throw std::invalid_argument(to_string(action) + " of rank " +
                                    std::to_string(rank) +
                                    " has no stage: stages count from 0");
      }
      int& known = result[action.stage];
      if (known >= 0 && known != rank) {
        throw std::invalid_argument(
            "stage " + std::to_string(action.stage) + " is on rank " +
            std::to_string(known) + " and, with " + to_string(action) +
            ", on rank " + std::to_string(rank) +
            ": all actions of a stage belong on one rank");
      }
      known = rank;
    }
  }
  return result;
}

}  // namespace gpipe
