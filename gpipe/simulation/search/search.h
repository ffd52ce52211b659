// Local search, the last part of automatic_schedule().
// Internal: users include automatic.h.
#pragma once

#include <cstdint>

#include "gpipe/simulation/search/order.h"
#include "gpipe/simulation/search/problem.h"

namespace gpipe::internal {

// Returns the shortest order found by `budget` moves from `order`. `order` must
// be within the memory limits, and so are all orders that the search tries. The
// same `seed` gives the same result. Ends early at the lower bound.
//
// Only a change on a critical path can shorten an order, so most moves begin
// there (van Laarhoven, Aarts and Lenstra, "Job shop scheduling by simulated
// annealing", 1992). A move is accepted if the new makespan is not longer than
// the current one, or than the one some moves ago (Burke and Bykov, "The late
// acceptance Hill-Climbing heuristic", 2017).
//
// Complexity: O(budget * n) for n actions.
Order improved(const Problem& problem, const Order& order, int budget,
               uint64_t seed);

}  // namespace gpipe::internal
