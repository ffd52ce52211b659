// The schedule of a training step: checks, recomputes, which cells have which
// actions, and a cache of what is made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Returns whether `schedule` has backwards, and so is no schedule of
// evaluate().
bool has_backward(const Schedule& schedule);

// Returns the cells (stage, micro-batch) that have an action of this kind.
std::set<std::pair<int64_t, int64_t>> cells_with(const Schedule& schedule,
                                                 ActionKind kind);

// Checks `schedule` and returns the rank of each stage. Throws
// std::invalid_argument if the schedule is not valid, and c10::ValueError if it
// does not have `stages` stages on `ranks` ranks. `options`: name of the
// pipeline's options type, for the error.
std::vector<int> check_schedule(const Schedule& schedule, int64_t stages,
                                int64_t ranks, const std::string& options);

// Returns `schedule` with the recomputes of `checkpoint` added. Returns it
// unchanged if it has no backwards, or has recomputes of its own.
Schedule with_checkpoint(const Schedule& schedule, Checkpoint checkpoint);

// A cache of values made from (schedule, checkpoint mode). It keeps the 8 most
// recently made. Not thread-safe.
template <typename Made>
class RecentPlans {
 public:
  // Returns the cached value, or that of make() if there is none. The reference
  // is valid until 8 other values have been made.
  template <typename Make>
  const Made& get(const Schedule& schedule, Checkpoint checkpoint, Make make) {
    for (const Entry& each : entries_) {
      if (each.checkpoint == checkpoint &&
          each.schedule.ranks == schedule.ranks) {
        return each.made;
      }
    }
    Made made = make();
    if (entries_.size() == kKept) entries_.pop_front();
    entries_.push_back({schedule, checkpoint, std::move(made)});
    return entries_.back().made;
  }

 private:
  static constexpr std::size_t kKept = 8;
  struct Entry {
    Schedule schedule;
    Checkpoint checkpoint;
    Made made;
  };
  std::deque<Entry> entries_;
};

}  // namespace gpipe::internal
