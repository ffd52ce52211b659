// A cache of what was derived from recent schedules.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "gpipe/schedule/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

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
