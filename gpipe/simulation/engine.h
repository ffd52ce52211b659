// A simulator that runs one schedule repeatedly, with different costs.
// Internal: users include simulate.h.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe::internal {

// The path of a stage's output to a neighbouring stage.
struct Route {
  // The number of the link, which makes its copies one after the other; -1 if
  // both stages are on one rank, or if there is no such stage.
  int link = -1;
  double wire = 0;   // seconds for which a copy occupies the link
  double delay = 0;  // seconds from then until the copy has arrived
};

// The costs of one schedule, as tables.
struct Durations {
  static constexpr std::size_t kKinds = kActionKinds;

  std::vector<double> seconds;  // [stage * kKinds + kind]
  // From each stage to the next one, and to the previous one.
  std::vector<Route> forward, backward;
  double overlap = 0;  // Costs::overlap

  double of(const Action& action) const {
    return seconds[static_cast<std::size_t>(action.stage) * kKinds +
                   static_cast<std::size_t>(action.kind)];
  }
};

// A simulator of one schedule.
class Engine {
 public:
  // Keeps a reference to `schedule`, which must outlive the engine. Throws
  // std::invalid_argument in the cases of simulate(), except that the runs
  // report an action that can never start.
  Engine(const Schedule& schedule, const Costs& costs);

  const Durations& durations() const { return durations_; }

  // Return the makespan in seconds, and the timeline, without memory, of a run.
  // Throw std::invalid_argument if an action can never start.
  // Complexity: O(n) for n actions. Thread-safe.
  double makespan(const Durations& durations) const;
  Timeline timeline(const Durations& durations) const;

 private:
  class Run;

  // The state of an action for which others may wait.
  struct Entry {
    // The time at which its output arrives at the neighbouring stage; of O and
    // L, the end of the copy. 0 if the action is not in the schedule, which
    // counts as done. kPending if it has not run.
    double arrival = 0;
    // The rank that waits for the action. At most one can be woken, that of the
    // neighbouring stage. The action's own rank would only wait for an action
    // that is later on the same rank, and so never runs.
    int waiter = -1;
  };
  static constexpr double kPending = -1;

  void place();
  void check_blocks() const;
  void look_up(const Costs& costs);
  void connect(const Costs& costs);
  int link_between(int from, int to);

  const Schedule& schedule_;
  ActionTable<Entry> entries_;   // before a run
  std::vector<int> stage_rank_;  // -1: not in the schedule
  // The number of the link from one rank to another.
  std::map<std::pair<int, int>, int> links_;
  Durations durations_;
};

}  // namespace gpipe::internal
