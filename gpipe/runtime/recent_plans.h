// What was made of the last schedules, for steps that come with the same one.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "gpipe/runtime/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Threads: one at a time.
template <typename Made>
class RecentPlans {
 public:
  // That of make(), called unless these have been asked for of late. Valid
  // until several others have been.
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

}  // namespace gpipe
