// Local search: what automatic_schedule() ends with.
// Not for users: automatic.h is.
#pragma once

#include <cstdint>

#include "gpipe/simulation/automatic_order.h"
#include "gpipe/simulation/automatic_problem.h"

namespace gpipe {

// The shortest of `budget` orders, one made from the other, from `order` on,
// which fits; all of them are within the limits. Ends early when the lower
// bound is reached.
//
// What shortens an order changes a critical path, so moves begin there (van
// Laarhoven, Aarts and Lenstra, "Job shop scheduling by simulated annealing",
// 1992). A move is accepted if the makespan becomes no longer than it is, or
// than it was some moves ago (Burke and Bykov, "The late acceptance
// Hill-Climbing heuristic", 2017).
//
// Complexity: O(budget * n).
Order improved(const Problem& problem, const Order& order, int budget,
               uint64_t seed);

}  // namespace gpipe
