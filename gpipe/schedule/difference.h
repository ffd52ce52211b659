// How two schedules differ, for messages.
#pragma once

#include <string>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns how schedule `b` differs from `a`, or "" if they are equal: "a has 8
// micro-batches and b has 4", or "action 3 of rank 1 is 1F2 in a and 1B0 in b".
// An action with `fused_with_next` is written as "1F2 + next".
// `name_a`, `name_b`: what the text calls them.
std::string describe_difference(const Schedule& a, const std::string& name_a,
                                const Schedule& b, const std::string& name_b);

}  // namespace gpipe
