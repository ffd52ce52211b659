#include "gpipe/schedule/schedule.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

// Returns the largest accepted number of cells (stages, or stages times
// micro-batches) for a schedule of `actions` actions. A part of a schedule, for
// example one stage of many, may leave out many numbers. The limit keeps a
// mistyped number from allocating all memory.
double most_cells(std::size_t actions) {
  return 1e6 + 1e3 * static_cast<double>(actions);
}

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
  if (stages <= most_cells(actions)) return;
  internal::refuse("a schedule of ", actions, " actions has a stage ",
                   stages - 1, ": number stages from 0 without a gap");
}

}  // namespace

std::string to_string(const Action& action) {
  return std::to_string(action.stage) + internal::letter_of(action.kind) +
         std::to_string(action.microbatch);
}

bool internal::has_kind(const Schedule& schedule, ActionKind kind) {
  return std::ranges::any_of(schedule.ranks, [kind](const auto& rank) {
    return std::ranges::any_of(
        rank, [kind](const Action& each) { return each.kind == kind; });
  });
}

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

namespace gpipe::internal {

void check_sizes(int64_t ranks, int64_t microbatches, int64_t stages_per_rank) {
  const bool is_empty = ranks < 1 || microbatches < 1 || stages_per_rank < 1;
  constexpr double kMost = 0x1p28;
  const double cells = static_cast<double>(ranks) *
                       static_cast<double>(stages_per_rank) *
                       static_cast<double>(microbatches);
  if (!is_empty && cells <= kMost) return;
  refuse(is_empty ? "a schedule needs at least 1 rank, 1 stage per rank and 1 "
                    "micro-batch"
                  : "a schedule has at most 2^28 cells, ranks times stages per "
                    "rank times micro-batches",
         " (ranks: ", ranks, ", stages per rank: ", stages_per_rank,
         ", micro-batches: ", microbatches, ")");
}

// Gives the included kinds of `actions` actions their columns.
void ActionIndex::number(std::size_t actions) {
  for (int& column : columns_) {
    if (column == 0) column = static_cast<int>(kinds_++);
  }
  if (static_cast<double>(stages_) * static_cast<double>(microbatches_) >
      most_cells(actions)) {
    refuse("a schedule of ", actions, " actions has a stage ", stages_ - 1,
           " and a micro-batch ", microbatches_ - 1,
           ": number both from 0, without gaps");
  }
  size_ = static_cast<std::size_t>(stages_ * microbatches_) * kinds_;
}

void ActionIndex::include(const Action& action) {
  if (action.stage < 0 || action.microbatch < 0) {
    refuse("an action has the stage ", action.stage, " and the micro-batch ",
           action.microbatch, ": both count from 0");
  }
  stages_ = std::max<int64_t>(stages_, int64_t{action.stage} + 1);
  microbatches_ =
      std::max<int64_t>(microbatches_, int64_t{action.microbatch} + 1);
  columns_[static_cast<std::size_t>(action.kind)] = 0;
}

}  // namespace gpipe::internal
