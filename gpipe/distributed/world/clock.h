// The clocks of the ranks of a world, compared with that of rank 0.
#pragma once

#include "gpipe/distributed/world/communicator.h"

namespace gpipe::internal {

// What a rank knows of the clock of rank 0.
struct ClockOffset {
  // Seconds to add to std::chrono::steady_clock here to get that of rank 0, and
  // the largest error of it.
  double seconds = 0, error = 0;
  // Seconds of the clock here at the time of the measurement.
  double at = 0;
};

// Measures the offset of this rank's clock. All ranks call it at the same
// point. Blocks until rank 0 has answered all ranks before and this one.
//
// Each of 16 answers of rank 0 has the time of its clock, which was read
// between the sending of the question and the arrival of the answer. The offset
// is in the intersection of these 16 intervals; `seconds` is its middle, and
// `error` half its length. So no assumption is made about how the two ways
// share a round trip. Drift within the exchange, some nanoseconds, is
// neglected.
//
// `channel`: Communicator::next_channel(), for the tag of the messages.
// Throws PeerError if the world has failed.
ClockOffset measure_clock(Communicator& world, int channel);

// Returns the offset at `time` (seconds of the clock here), on the line through
// two measurements. Its error is the larger one of both.
ClockOffset offset_at(const ClockOffset& before, const ClockOffset& after,
                      double time);

}  // namespace gpipe::internal
