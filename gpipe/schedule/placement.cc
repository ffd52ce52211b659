#include "gpipe/schedule/placement.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "gpipe/base/text.h"
#include "gpipe/schedule/gaps.h"

namespace gpipe {
namespace {

int count(const Schedule& schedule, int Action::*number) {
  int result = 0;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (const Action& action : schedule.ranks[r]) {
      // In a schedule that is not validated, one more may overflow.
      if (action.*number == std::numeric_limits<int>::max()) {
        internal::refuse(
            to_string(action), " of rank ", r,
            " has a number that is too large: stages and micro-batches "
            "are numbered from 0 without a gap");
      }
      result = std::max(result, action.*number + 1);
    }
  }
  return result;
}

void check_gaps(const Schedule& schedule, int stages) {
  std::size_t actions = 0;
  for (const auto& rank : schedule.ranks) actions += rank.size();
  if (stages <= internal::most_cells(actions)) return;
  internal::refuse("a schedule of ", actions, " actions has a stage ",
                   stages - 1, ": number stages from 0 without a gap");
}

}  // namespace

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
  return count(schedule, &Action::stage);
}

int num_microbatches(const Schedule& schedule) {
  return count(schedule, &Action::microbatch);
}

std::vector<int> rank_of_stage(const Schedule& schedule) {
  const int stages = num_stages(schedule);
  check_gaps(schedule, stages);
  std::vector<int> result(stages, -1);
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (const Action& action : schedule.ranks[r]) {
      if (action.stage < 0) {
        internal::refuse(to_string(action), " of rank ", rank,
                         " has a negative stage: stages count from 0");
      }
      int& known = result[action.stage];
      if (known >= 0 && known != rank) {
        internal::refuse("stage ", action.stage, " is on rank ", known,
                         " and, with ", to_string(action), ", on rank ", rank,
                         ": all actions of a stage belong on one rank");
      }
      known = rank;
    }
  }
  return result;
}

}  // namespace gpipe
