// One timeline of a step of all ranks.
#pragma once

#include <memory>
#include <vector>

#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/simulation/draw.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// The timelines of all ranks in the time of rank 0.
struct WholeTimeline {
  // One per replica of the pipeline, "pipeline" or "replica 0", "replica 1",
  // ..., with all ranks of the replica. The times of each count from its own
  // beginning of the step. Empty on ranks other than 0.
  std::vector<NamedTimeline> replicas;
  // The times of two ranks differ by at most this many seconds from those that
  // one clock would have given.
  double clock_error = 0;
};

// Brings the timelines of all ranks together:
//
//   gpipe::SharedClock clock(world);        // on all ranks, before training
//   ...
//   const auto result = pipeline->train_step(
//       data, target, loss, schedule, gpipe::TrainOptions().timeline(true));
//   const auto whole = clock.gather(*result.timeline);  // on all ranks
//   if (world->rank() == 0) {
//     std::cout << gpipe::write_trace("step.json", whole.replicas);
//   }
//
// Clocks are compared by round trips to rank 0 when the object is made and in
// each gather(); a drift between is taken for constant.
//
// All ranks make the same calls in the same order. Not thread-safe. Calls throw
// PeerError if the world has failed.
class SharedClock {
 public:
  // Throws c10::ValueError if `world` is null.
  explicit SharedClock(const std::shared_ptr<World>& world);

  // Returns the timelines of all ranks on rank 0. `own`: StepResult::timeline
  // of this rank. Throws std::invalid_argument if the timelines do not fit
  // together.
  WholeTimeline gather(Timeline own);

 private:
  internal::ClockOffset measure();

  const std::shared_ptr<internal::Communicator> world_;
  const int channel_;
  internal::ClockOffset before_;
};

}  // namespace gpipe
