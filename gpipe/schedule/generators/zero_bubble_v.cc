#include "gpipe/schedule/generators/zero_bubble_v.h"

#include <utility>
#include <vector>

#include "gpipe/schedule/generators/v_row.h"
#include "gpipe/schedule/sizes.h"

namespace gpipe {
namespace {

std::vector<Action> row(int ranks, int rank, int microbatches) {
  internal::VRow row(ranks, rank);
  const auto backward = [&](int chunk) {
    row.input(chunk);
    row.weight(chunk);
  };
  // Warm-up: forwards of the first chunk until the activations of micro-batch 0
  // come back from rank p - 1; then a forward of each chunk in turn, until the
  // gradient of micro-batch 0 comes back from rank 0.
  for (int k = 0; k < 2 * (ranks - rank) - 1; ++k) row.forward(0);
  for (int k = 0; k < rank; ++k) {
    row.forward(1);
    row.forward(0);
  }
  for (int k = 0; k < ranks - rank; ++k) {
    row.forward(1);
    backward(1);
  }
  while (row.forwards(1) < microbatches) {
    if (row.forwards(0) < microbatches) row.forward(0);
    backward(0);
    row.forward(1);
    backward(1);
  }
  // Drain: other ranks wait for Is, so Ws run only when there is no I.
  for (int k = 0; k < rank; ++k) {
    row.input(0);
    row.input(1);
  }
  for (int k = 0; k < ranks - rank; ++k) backward(0);
  while (row.weight(1)) {
  }
  while (row.weight(0)) {
  }
  return std::move(row).actions();
}

}  // namespace

Schedule zero_bubble_v(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  return internal::v_schedule(ranks, microbatches, /*least=*/2 * ranks - 1,
                              row);
}

}  // namespace gpipe
