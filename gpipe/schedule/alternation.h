// What 1F1B, interleaved 1F1B and the zero-bubble schedules made from them have
// in common: a rank begins with some forwards, then does one forward and one
// backward in turn, and ends with the backwards that are left.
#pragma once

#include <functional>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Rank r has the stages r, r + ranks, r + 2 ranks, ... It comes to the
// micro-batches in groups: to a whole group on its first stage, then on the
// next one, and so on; then to the next group. The last group may be smaller.
// Backwards are in the same order of micro-batches, the last stage first.
struct Loop {
  int ranks = 1;
  int microbatches = 1;
  int stages_per_rank = 1;
  int group = 1;
};

// A number for each rank.
using PerRank = std::function<int(int rank)>;

// Each rank does `warm_up` forwards (all that there are, if they are fewer),
// then pairs of a forward and a B, then the rest of the Bs.
Schedule alternate(const Loop& loop, const PerRank& warm_up);

// The same with I in place of B. A W follows each I but the first `lag` ones,
// the oldest first, and the rest of the Ws come last.
Schedule alternate_split(const Loop& loop, const PerRank& warm_up,
                         const PerRank& lag);

}  // namespace gpipe
