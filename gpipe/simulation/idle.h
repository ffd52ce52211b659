// The causes of the idle time of each rank of a timeline.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

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
