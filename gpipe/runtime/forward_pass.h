// The forwards of a schedule, on the cells of a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "gpipe/runtime/border.h"
#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/copy_log.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/step.h"
#include "gpipe/runtime/stream.h"

namespace gpipe {

class ForwardPass : public Actor {
 public:
  // `inputs`: by micro-batch; none if the first stage is elsewhere.
  // `leaf_input`: the input is a leaf of the user's. `border`: if there are
  // stages elsewhere.
  ForwardPass(Stages& stages, Step& step, std::vector<Parcel> inputs,
              bool leaf_input, Border* border = nullptr);

  // What a stage here waits for, complete at `ready`. Threads: any; once for
  // each passage.
  void deliver(const Passage& passage, Value::Kind kind,
               std::vector<Crossing> content, const Moment& ready);

  bool ready(const Action& action) override;
  void fetch(const Action& action, CopyLog* log) override;
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // What the last partition made, by micro-batch.
  std::vector<Parcel>& outputs() { return outputs_; }

 private:
  // What waits for a cell: the boundary, and a passage for each skip tensor.
  struct Inbox {
    std::atomic<std::size_t> missing{0};
    Parcel parcel;
    Moment boundary_ready;
    std::vector<Moment> skip_ready;
  };

  // To a stage here, or into `leaving`.
  void pass_on(const Passage& passage, Value::Kind kind,
               std::vector<Crossing> content, const Moment& made,
               std::vector<Outgoing>& leaving);

  Stages& stages_;
  Step& step_;
  const bool leaf_input_;
  Border* const border_;
  std::vector<std::deque<Inbox>> inboxes_;
  std::vector<Parcel> outputs_;
};

}  // namespace gpipe
