#include "gpipe/schedule/generators/dual_pipe_v.h"

#include <utility>
#include <vector>

#include "gpipe/schedule/generators/v_row.h"
#include "gpipe/schedule/sizes.h"

namespace gpipe {
namespace {

std::vector<Action> row(int ranks, int rank, int microbatches) {
  internal::VRow row(ranks, rank);
  const auto forward_and_backward = [&](int forward_chunk, int backward_chunk) {
    row.forward(forward_chunk, /*fused_with_next=*/true);
    row.backward(backward_chunk);
  };
  const int below = ranks - 1 - rank;  // ranks after this one
  // Warm-up.
  for (int k = 0; k < 2 * below; ++k) row.forward(0);
  for (int k = 0; k <= rank; ++k) {
    row.forward(0);
    row.forward(1);
  }
  for (int k = 0; k < below; ++k) {
    row.input(1);
    row.weight();
    row.forward(1);
  }
  // Steady state, in blocks. The last rank does not begin with a block, since
  // the other ranks would wait for its first backward.
  for (int k = 0; k < microbatches - 2 * ranks + rank + 1; ++k) {
    if (k == 0 && below == 0) {
      row.forward(0);
      row.backward(1);
    } else {
      forward_and_backward(0, 1);
    }
    forward_and_backward(1, 0);
  }
  for (int k = 0; k < below; ++k) {
    row.backward(1);
    forward_and_backward(1, 0);
  }
  // Drain. From the middle on, Ws wait until there is no other action.
  for (int k = 0; k < 2 * (rank + 1); ++k) {
    const int chunk = 1 - k % 2;
    if (k <= rank) {
      row.backward(chunk);
    } else {
      row.input(chunk);
    }
  }
  for (int k = 0; k < below; ++k) {
    row.weight();
    row.input(0);
  }
  for (int k = 0; k <= rank; ++k) row.weight();
  return std::move(row).actions();
}

}  // namespace

Schedule dual_pipe_v(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  return internal::v_schedule(ranks, microbatches, /*least=*/2 * ranks, row);
}

}  // namespace gpipe
