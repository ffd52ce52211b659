// The order of the messages from one rank to another in a step. Uses no
// network.
#pragma once

#include <vector>

#include "gpipe/runtime/step/passes.h"
#include "gpipe/runtime/step/step.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// The parts of one message: all outputs of one action for stages of one rank.
// Skip tensors come first, in the order of `links`; the output for the
// neighbouring stage comes last.
using MessageEdges = std::vector<StageEdge>;

// Returns the messages that rank `from` sends to rank `to`, in the order of the
// actions of `from`. It depends on the schedule only, so both ranks know it,
// and the receiver knows which message comes next.
std::vector<MessageEdges> route(const Schedule& schedule,
                                const std::vector<int>& rank_of_stage,
                                const std::vector<SkipLink>& links, int from,
                                int to);

}  // namespace gpipe::internal
