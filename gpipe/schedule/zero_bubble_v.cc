#include "gpipe/schedule/zero_bubble_v.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpipe/schedule/sizes.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

// The actions of one rank. A chunk is one of its two stages (0: the first, 1:
// the second). Each kind takes the micro-batches of a chunk in ascending order.
class Row {
 public:
  Row(int ranks, int rank) : stages_{rank, 2 * ranks - 1 - rank} {}

  void forward(int chunk) {
    add(chunk, ActionKind::kForward, forwards_[chunk]);
  }
  void input(int chunk) {
    add(chunk, ActionKind::kBackwardInput, inputs_[chunk]);
  }
  void weight(int chunk) {
    add(chunk, ActionKind::kBackwardWeight, weights_[chunk]);
  }
  void backward(int chunk) {
    input(chunk);
    weight(chunk);
  }

  int forwards(int chunk) const { return forwards_[chunk]; }
  int weights_left(int chunk) const { return inputs_[chunk] - weights_[chunk]; }

  std::vector<Action> actions() && { return std::move(actions_); }

 private:
  void add(int chunk, ActionKind kind, int& microbatch) {
    actions_.push_back({stages_[chunk], kind, microbatch++});
  }

  int stages_[2];
  int forwards_[2] = {}, inputs_[2] = {}, weights_[2] = {};
  std::vector<Action> actions_;
};

std::vector<Action> row(int ranks, int rank, int microbatches) {
  Row row(ranks, rank);
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
    row.backward(1);
  }
  while (row.forwards(1) < microbatches) {
    if (row.forwards(0) < microbatches) row.forward(0);
    row.backward(0);
    row.forward(1);
    row.backward(1);
  }
  // Drain: other ranks wait for Is, so Ws run only when there is no I.
  for (int k = 0; k < rank; ++k) {
    row.input(0);
    row.input(1);
  }
  for (int k = 0; k < ranks - rank; ++k) {
    row.input(0);
    row.weight(0);
  }
  while (row.weights_left(1) > 0) row.weight(1);
  while (row.weights_left(0) > 0) row.weight(0);
  return std::move(row).actions();
}

}  // namespace

Schedule zero_bubble_v(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  const int least = 2 * ranks - 1;
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.ranks.push_back(row(ranks, rank, std::max(least, microbatches)));
  }
  if (microbatches >= least) return schedule;
  return select(schedule,
                [&](const Action& a) { return a.microbatch < microbatches; });
}

}  // namespace gpipe
