// The exact cut of a candidate that is a chain (balancing/chain/chain.h). No
// LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "balancing/planner/candidate.h"
#include "balancing/planner/problem.h"

namespace gpipe::balancing::planner {

// Returns the cut that balance_chain() finds for GPipe's schedule or 1F1B, with
// all links as slow as the slowest one. Returns nullopt for other candidates,
// and if no cut fits.
std::optional<std::vector<int64_t>> chain_cut(const Problem& problem,
                                              const Candidate& candidate);

}  // namespace gpipe::balancing::planner
