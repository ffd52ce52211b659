#include "gpipe/simulation/action_index.h"

#include <algorithm>

#include "gpipe/base/text.h"
#include "gpipe/schedule/gaps.h"

namespace gpipe::internal {

// Gives the included kinds of `actions` actions their columns.
void ActionIndex::number(std::size_t actions) {
  for (int& column : columns_) {
    if (column == 0) column = static_cast<int>(kinds_++);
  }
  if (static_cast<double>(stages_) * static_cast<double>(microbatches_) >
      most_cells(actions)) {
    refuse("a schedule of ", actions, " actions has a stage ", stages_ - 1,
           " and a micro-batch ", microbatches_ - 1,
           ": number both from 0, without gaps");
  }
  size_ = static_cast<std::size_t>(stages_ * microbatches_) * kinds_;
}

void ActionIndex::include(const Action& action) {
  if (action.stage < 0 || action.microbatch < 0) {
    refuse("an action has the stage ", action.stage, " and the micro-batch ",
           action.microbatch, ": both count from 0");
  }
  stages_ = std::max<int64_t>(stages_, int64_t{action.stage} + 1);
  microbatches_ =
      std::max<int64_t>(microbatches_, int64_t{action.microbatch} + 1);
  columns_[static_cast<std::size_t>(action.kind)] = 0;
}

}  // namespace gpipe::internal
