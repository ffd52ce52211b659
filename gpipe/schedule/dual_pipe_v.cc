#include "gpipe/schedule/dual_pipe_v.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "gpipe/schedule/sizes.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

// The actions of one rank. A chunk is one of its two stages (0: the first, 1:
// the second). Forwards, and backwards, of a chunk take micro-batches in
// ascending order.
class Row {
 public:
  Row(int ranks, int rank) : stages_{rank, 2 * ranks - 1 - rank} {}

  void forward(int chunk, bool fused_with_next = false) {
    actions_.push_back({stages_[chunk], ActionKind::kForward,
                        forwards_[chunk]++, fused_with_next});
  }
  void backward(int chunk) {
    actions_.push_back(
        {stages_[chunk], ActionKind::kBackward, backwards_[chunk]++});
  }
  void forward_and_backward(int forward_chunk, int backward_chunk) {
    forward(forward_chunk, /*fused_with_next=*/true);
    backward(backward_chunk);
  }
  // Adds an I and keeps its W for weight().
  void input(int chunk) {
    const int i = backwards_[chunk]++;
    actions_.push_back({stages_[chunk], ActionKind::kBackwardInput, i});
    weights_.push_back({stages_[chunk], ActionKind::kBackwardWeight, i});
  }
  // Adds the oldest pending W, if there is one.
  void weight() {
    if (weights_.empty()) return;
    actions_.push_back(weights_.front());
    weights_.pop_front();
  }

  std::vector<Action> actions() && { return std::move(actions_); }

 private:
  int stages_[2];
  int forwards_[2] = {}, backwards_[2] = {};
  std::deque<Action> weights_;
  std::vector<Action> actions_;
};

std::vector<Action> row(int ranks, int rank, int microbatches) {
  Row row(ranks, rank);
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
      row.forward_and_backward(0, 1);
    }
    row.forward_and_backward(1, 0);
  }
  for (int k = 0; k < below; ++k) {
    row.backward(1);
    row.forward_and_backward(1, 0);
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
  const int least = 2 * ranks;
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.ranks.push_back(row(ranks, rank, std::max(least, microbatches)));
  }
  if (microbatches >= least) return schedule;
  return select(schedule,
                [&](const Action& a) { return a.microbatch < microbatches; });
}

}  // namespace gpipe
