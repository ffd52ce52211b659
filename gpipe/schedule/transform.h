// Schedules made from schedules.
#pragma once

#include <functional>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Puts a recompute right before every backward of a micro-batch that is
// `checkpointed`. A recompute needs no gradient, so a rank that would wait for
// one recomputes meanwhile; and since each is used up before the next begins,
// a stage never holds more than one.
Schedule with_recompute(
    const Schedule& schedule,
    const std::function<bool(int microbatch)>& checkpointed);

// Only the actions of which `keep` is true, in their order.
Schedule select(const Schedule& schedule,
                const std::function<bool(const Action&)>& keep);

}  // namespace gpipe
