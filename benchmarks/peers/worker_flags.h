// The flags of //benchmarks/peers:worker.
#pragma once

#include <c10/core/Device.h>
#include <gflags/gflags_declare.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "balancing/plan.h"
#include "benchmarks/peers/peer_model.h"
#include "training/autocast.h"

DECLARE_string(exported);
DECLARE_string(engine);
DECLARE_bool(processes);
DECLARE_int64(replicas);
DECLARE_string(transfers);
DECLARE_string(plan);
DECLARE_string(write_plan);
DECLARE_string(plan_microbatches);
DECLARE_double(learning_rate);

namespace gpipe::benchmarks {

// Returns whether the model comes from a file of //exported.
bool is_exported();

// Returns the model, or only the data and the loss of an exported one.
PeerModel data_of_flags();

// Returns the model with its data.
PeerModel model_of_flags();

// Returns the plan of --plan, or one of the other flags.
balancing::Plan plan_of_flags();

// Returns the number of layers that both sides report.
int64_t layers_of(int64_t size);

// Returns the devices of --devices, one for each of `parts` partitions or
// processes. A single device is that of all.
//
// Throws std::invalid_argument if --devices lists another number of devices.
std::vector<c10::Device> devices_of_flags(std::size_t parts);

// Returns a scope with the precision of --amp on `device`; null for float32.
// Throws std::invalid_argument if the precision is unknown.
std::unique_ptr<AutocastScope> autocast_of_flags(const c10::Device& device);

}  // namespace gpipe::benchmarks
