// A schedule that is run again and again, with costs that change in between.
// Not for users: simulate.h and improve.h are.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/action_index.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Between two ranks.
struct Link {
  int from = 0, to = 0;
};

// How what a stage makes gets to a neighbouring one.
struct Route {
  int link = -1;     // none: both are on one rank, or there is no such stage
  double wire = 0;   // seconds that a copy holds the link
  double delay = 0;  // seconds from there until it has arrived
};

// Costs, looked up.
struct Durations {
  static constexpr std::size_t kKinds = 5;

  std::vector<double> seconds;  // [stage * kKinds + kind]
  std::vector<Route> forward,
      backward;  // from each stage to the next, and back
  double overlap = 0;

  double of(const Action& action) const {
    return seconds[static_cast<std::size_t>(action.stage) * kKinds +
                   static_cast<std::size_t>(action.kind)];
  }
};

class Engine {
 public:
  // Keeps `schedule`, which must stay. Errors: those of simulate(), but for an
  // action that can never start.
  Engine(const Schedule& schedule, const Costs& costs);

  const Durations& durations() const { return durations_; }
  const std::vector<Link>& links() const { return links_; }
  std::size_t stages() const { return index_.stages(); }
  bool has_stage(std::size_t stage) const { return stage_rank_[stage] >= 0; }

  struct Record {
    std::vector<std::vector<Span>> ranks;
    std::vector<Transfer> transfers;
  };

  // Returns the makespan, and fills an empty `record` unless it is null.
  // std::invalid_argument if some action can never start. Complexity: O(n).
  double run(const Durations& durations, Record* record) const;

 private:
  class Run;

  // Of an action that others may wait for.
  struct Entry {
    // When what it made is at the neighbouring stage. What is not in the
    // schedule is taken as done from the beginning.
    double arrival = 0;
    // The rank that waits for it. There is one at most that it can wake: its
    // own rank waits only for what comes later there, in vain.
    int waiter = -1;
  };
  static constexpr double kPending = -1;  // an Entry::arrival

  void place();
  void check_blocks() const;
  void look_up(const Costs& costs);
  void connect(const Costs& costs);
  int link_between(int from, int to);

  const Schedule& schedule_;
  const ActionIndex index_;
  std::vector<Entry> entries_;   // at the beginning
  std::vector<int> stage_rank_;  // -1: not in the schedule
  std::vector<Link> links_;
  std::map<std::pair<int, int>, int> link_numbers_;
  Durations durations_;
};

}  // namespace gpipe
