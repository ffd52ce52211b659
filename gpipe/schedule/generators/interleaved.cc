#include "gpipe/schedule/generators/interleaved.h"

#include <algorithm>

#include "gpipe/base/text.h"
#include "gpipe/schedule/generators/alternation.h"
#include "gpipe/schedule/sizes.h"

namespace gpipe {
namespace {

// Returns whether each group, including the last one, has at least `ranks`
// micro-batches, or is the only one.
bool fits(int ranks, int microbatches, int group) {
  if (group == microbatches) return true;
  const int last = microbatches % group;
  return group >= ranks && group < microbatches && (last == 0 || last >= ranks);
}

}  // namespace

Schedule interleaved(int ranks, int microbatches, int stages_per_rank,
                     int group) {
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  if (group == 0) group = default_group(ranks, microbatches);
  if (group < 1 || !fits(ranks, microbatches, group)) {
    internal::refuse(
        "micro-batches cannot be interleaved in groups of ", group,
        ": each group, including the last one, needs at least as many as there "
        "are ranks; ",
        default_group(ranks, microbatches),
        " is possible, or 0 for the default (ranks: ", ranks,
        ", micro-batches: ", microbatches, ")");
  }
  return internal::alternate(
      {ranks, microbatches, stages_per_rank, group}, [&](int rank) {
        return 2 * (ranks - 1 - rank) + (stages_per_rank - 1) * group;
      });
}

int default_group(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  int group = std::min(ranks, microbatches);
  // Ends at `microbatches` at the latest, which is one group of all.
  while (!fits(ranks, microbatches, group)) ++group;
  return group;
}

}  // namespace gpipe
