#include "gpipe/schedule/generators/one_forward_one_backward.h"

#include "gpipe/schedule/generators/alternation.h"
#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule one_forward_one_backward(int stages, int microbatches) {
  internal::check_sizes(stages, microbatches);
  return internal::alternate({stages, microbatches},
                             [&](int rank) { return stages - 1 - rank; });
}

Schedule eager_one_forward_one_backward(int stages, int microbatches) {
  internal::check_sizes(stages, microbatches);
  return internal::alternate({stages, microbatches},
                             [&](int rank) { return 2 * (stages - 1 - rank); });
}

}  // namespace gpipe
