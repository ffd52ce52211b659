// Why the ranks of a timeline are idle.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// What a rank waits for; see IdleParts.
enum class IdleCause {
  kSchedule,
  kImbalance,
  kTransfer,
  kOverhead,
  kElsewhere
};

// "warm-up, drain", "imbalance", "transfer", "overhead", "other processes".
const char* name_of(IdleCause cause);

// Time of a rank in which it does no action.
struct IdleSpan {
  double start = 0, end = 0;  // seconds from the beginning of the step
  IdleCause cause = IdleCause::kOverhead;
};

// Seconds of a rank, by cause.
struct IdleParts {
  // It waited for what other ranks computed: as long as it would if all stages
  // took equally long (the warm-up and the drain of the schedule) ...
  double schedule = 0;
  // ... and beyond that.
  double imbalance = 0;
  // For copies.
  double transfer = 0;
  // Nothing was missing: what goes on between actions.
  double overhead = 0;
  // For what ranks computed that the timeline does not have.
  double elsewhere = 0;

  // Seconds that are idle.
  double total() const {
    return schedule + imbalance + transfer + overhead + elsewhere;
  }
};

// Of each rank, the sums of idle_spans(); total() is Timeline::idle but for
// rounding. A rank that waits
// for another one, which is idle too, waits for what that one waits for, at any
// moment; after its last action a rank waits for the end of the step.
//
// "Equally long": the schedule is simulated with the mean of each kind of
// action over all stages.
//
// The timeline is of a whole schedule, simulated or measured, or of one process
// of several: then the time until another one sends what an action needs is
// `elsewhere`, and from then on until it is here `transfer`. (What a timeline
// does not know is overhead: waiting for the copy of a skip tensor alone, for
// example.)
//
// Errors: std::invalid_argument for a timeline in which an action waits for
// itself, over others, and for stages or micro-batches below 0 or far beyond
// the number of actions. Complexity: O(n p) for n actions on p ranks, if few
// ranks are idle together. Threads: pure function.
std::vector<IdleParts> idle_parts(const Timeline& timeline);

// The same as spans, by rank, in the order of time; together they are all of
// the time that no span of the rank covers. Of the time that a rank waits for
// what others compute, that belongs to the schedule which it would wait before
// the same action if all stages took equally long; what the schedule would wait
// elsewhere goes to the first spans that are left. Errors and threads: as
// above.
std::vector<std::vector<IdleSpan>> idle_spans(const Timeline& timeline);

// A line for each rank, counted from `first_rank`, and one for all: the parts
// in seconds, and as parts of the idle time.
std::string to_text(const std::vector<IdleParts>& parts, int first_rank = 0);

}  // namespace gpipe
