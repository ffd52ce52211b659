#include "gpipe/schedule/generators/zero_bubble_h.h"

#include "gpipe/schedule/generators/alternation.h"
#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule zero_bubble_h1(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  return internal::alternate(
      {ranks, microbatches}, [&](int rank) { return ranks - 1 - rank; },
      [](int rank) { return rank; });
}

Schedule zero_bubble_h2(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  return internal::alternate(
      {ranks, microbatches}, [&](int rank) { return 2 * (ranks - 1 - rank); },
      [](int rank) { return 2 * rank; });
}

}  // namespace gpipe
