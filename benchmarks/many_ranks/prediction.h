// The simulator's prediction for a row of small processes on one machine.
#pragma once

#include "gpipe/schedule.h"

namespace gpipe::benchmarks {

// What an action and a message cost.
struct MessageCosts {
  double action = 0;   // CPU seconds of an action without messages
  double message = 0;  // CPU seconds of one end of a message
  double latency = 0;  // seconds from an action to one on the other rank
};

// Returns the costs for which a step of two processes takes `step` seconds.
//
// `alone`, `with_messages`: CPU seconds of an action in one process, and in
// each of two, where each action sends or receives one message.
// `two`: the schedule of the two processes.
MessageCosts message_costs(double alone, double with_messages, double step,
                           const Schedule& two);

// Returns the simulated seconds of a step of `schedule`, with one stage per
// rank: the larger one of a step on `cores` cores that all ranks share, without
// latency, and of a step with latency on cores of the ranks' own. (The
// simulator has either shared cores or latency.) Stages between the first and
// the last have two messages per action.
double predicted_step(const MessageCosts& measured, const Schedule& schedule,
                      double cores);

}  // namespace gpipe::benchmarks
