// The forwards of a schedule, on the cells of a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/step.h"
#include "gpipe/runtime/stream.h"

namespace gpipe {

class ForwardPass : public Actor {
 public:
  // `leaf_input`: the input is a leaf of the user's.
  ForwardPass(Stages& stages, Step& step, std::vector<Parcel> inputs,
              bool leaf_input);

  bool ready(const Action& action) override;
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // What the last partition made, by micro-batch.
  std::vector<Parcel>& outputs() { return outputs_; }

 private:
  // What waits for a cell. The boundary arrives last.
  struct Inbox {
    std::atomic<bool> full{false};
    Parcel parcel;
    Moment boundary_ready;
    std::vector<Moment> skip_ready;
  };

  Stages& stages_;
  Step& step_;
  bool leaf_input_;
  std::vector<std::deque<Inbox>> inboxes_;
  std::vector<Parcel> outputs_;
};

}  // namespace gpipe
