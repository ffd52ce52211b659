#include "benchmarks/peers/peer_plan.h"

#include <ATen/Parallel.h>

#include <fstream>
#include <iostream>
#include <stdexcept>

#include "balancing/plan.h"
#include "balancing/profile.h"

namespace gpipe::benchmarks {
namespace {

// Messages between two processes of a machine over Gloo: half of the time of 64
// bytes there and back, and messages of 256 KiB to 1 MiB (docs/decisions.md).
constexpr double kLatency = 1.2e-4, kBandwidth = 2e9;
// Each message takes CPU time of both processes besides: some 0.6 ms together
// for 256 KiB of the MLP (380 ms with 56 messages, 347 ms in one process).
constexpr double kOverhead = 3e-4;

}  // namespace

void write_peer_plan(const PeerModel& model,
                     const std::vector<int64_t>& microbatches,
                     const std::string& path) {
  at::set_num_threads(2);  // both ranks together
  const auto plan =
      balancing::plan(model.model, model.input, {at::kCPU, at::kCPU},
                      balancing::PlanOptions()
                          .chunks(microbatches)
                          .checkpoints({Checkpoint::kNever})
                          .latency(kLatency)
                          .bandwidth(kBandwidth)
                          .overhead(kOverhead)
                          .profile(balancing::TimeOptions().timeout(3)));
  std::ofstream file(path);
  file << balancing::to_json(plan) << std::flush;
  if (!file) throw std::runtime_error(path + ": cannot be written");
  std::cout << plan;
}

}  // namespace gpipe::benchmarks
