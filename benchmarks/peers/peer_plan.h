// The plan of a model that is compared with peers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/peers/peer_model.h"

namespace gpipe::benchmarks {

// Plans train_step() for two processes with one thread each, without
// recomputes. Writes the plan as JSON to `path`, and prints it to stdout.
//
// `microbatches`: the numbers to choose from.
//
// Throws std::runtime_error if the file cannot be written, and what
// balancing::plan() throws.
void write_peer_plan(const PeerModel& model,
                     const std::vector<int64_t>& microbatches,
                     const std::string& path);

}  // namespace gpipe::benchmarks
