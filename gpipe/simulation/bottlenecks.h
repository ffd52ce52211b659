// What determines the makespan of a timeline: its critical path, and the
// causes of the idle time of each rank.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// ---- The critical path

// One action or copy of a critical path.
struct CriticalStep {
  // The action, or the action whose output is copied. An O or L is the copy to
  // or from the host.
  Action action;
  // Ranks. Of an action, both are its rank. Of a copy to another rank, they are
  // its link. The first rank of the timeline is Timeline::first_rank.
  int from = 0, to = 0;
  double start = 0, end = 0;  // seconds

  // Returns whether this is a copy to another rank.
  bool is_transfer() const { return from != to; }
};

// Returns the actions and copies that determine the makespan, in the order of
// time. The search goes back from the last action. Each step is preceded by the
// one that ended last among those for which it waited. If several ended at the
// same time, that is the previous action on its rank. A copy that waited for
// its link is preceded by the previous copy on that link, up to the time at
// which that copy left the link. A copy to or from the host waits for the
// actions before its place, for the previous copy in its direction, and L for
// its O.
//
// A timeline does not say which stage of a rank a skip tensor is for. So a
// forward counts as waiting for all copies of its micro-batch from earlier
// stages to its rank that had arrived when it began. A backward counts as
// waiting for those from later stages.
//
// The timeline of one process of several does not know what other processes
// did. There the path begins with the last copy on it that came from another
// process, if there is one.
//
// In a simulated timeline each step ends when the next one starts, from 0 to
// the makespan. In a measured one there may be gaps: work that is not in the
// schedule.
//
// Throws std::invalid_argument if actions of the timeline wait for each other
// in a cycle, or if stages or micro-batches are below 0 or far more than the
// actions. Complexity: O(n log n) for n actions, if ranks have few stages each.
// Threads: pure function.
std::vector<CriticalStep> critical_path(const Timeline& timeline);

// ---- Idle time

// The cause of idle time; see IdleParts.
enum class IdleCause { kSchedule, kImbalance, kTransfer, kOverhead, kRemote };

// Returns "warm-up, drain", "imbalance", "transfer", "overhead" or "remote
// ranks".
const char* to_string(IdleCause cause);

// An interval in which a rank runs no action, for one cause.
struct IdleSpan {
  double start = 0, end = 0;  // seconds from the beginning of the step
  IdleCause cause = IdleCause::kOverhead;
};

// The idle seconds of a rank, by cause.
struct IdleParts {
  // The rank waited while other ranks computed. This is the part for which it
  // would also wait if all stages took equally long: warm-up and drain.
  double schedule = 0;
  // The rest of the time for which it waited while other ranks computed.
  double imbalance = 0;
  // The rank waited for copies from other ranks or from its host.
  double transfer = 0;
  // All inputs of the next action had arrived: time spent between actions.
  double overhead = 0;
  // The rank waited while ranks computed that are not in the timeline.
  double remote = 0;

  // Returns the sum of all parts.
  double total() const {
    return schedule + imbalance + transfer + overhead + remote;
  }
};

// Returns, for each rank, the sums of idle_spans(). total() is Timeline::idle
// except for rounding. If a rank waits for another rank that is idle too, the
// cause is the cause of the other rank at that time. After its last action a
// rank waits for the end of the step.
//
// "Equally long" (IdleParts::schedule) means a simulation of the schedule in
// which each kind of action takes its mean over all stages.
//
// The timeline may be simulated or measured. It has all ranks, or only those of
// one process of several. In the second case, the time until another process
// sends an input is `remote`, and the time from then until the input has
// arrived is `transfer`. Waits that a timeline does not show are `overhead`,
// for example a wait only for the copy of a skip tensor.
//
// Throws std::invalid_argument if actions of the timeline wait for each other
// in a cycle, or if stages or micro-batches are below 0 or far more than the
// actions. Complexity: O(n p) for n actions on p ranks, if few ranks are idle
// at the same time. Threads: pure function.
std::vector<IdleParts> idle_parts(const Timeline& timeline);

// Returns the idle spans of each rank, in the order of time. Together they
// cover all of its time that no action covers.
//
// A wait while other ranks compute is divided between `schedule` and
// `imbalance`. Before each action, `schedule` gets as long as the rank would
// wait there if all stages took equally long. If the rank waits for less, the
// rest of `schedule` goes to its first waits that are longer.
//
// Throws std::invalid_argument in the cases of idle_parts(). Complexity: as
// idle_parts(). Threads: pure function.
std::vector<std::vector<IdleSpan>> idle_spans(const Timeline& timeline);

// Returns a table as text: a line for each rank, numbered from `first_rank`,
// and one for their sum. It shows each cause in seconds and as a percentage of
// the idle time.
std::string to_text(const std::vector<IdleParts>& parts, int first_rank = 0);

}  // namespace gpipe
