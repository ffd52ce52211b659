#include "gpipe/testing/simulated/simulated.h"

#include <chrono>
#include <thread>

#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {
namespace {

c10::DeviceIndex index(std::int64_t device) {
  return static_cast<c10::DeviceIndex>(device);
}

}  // namespace

void set_delays(const Delays& delays) { Simulation::get().set_delays(delays); }

void synchronize() {
  for (c10::DeviceIndex k = 0; k < kDevices; ++k) {
    Simulation::get().host_wait(k);
  }
}

std::vector<std::string> take_races() { return Simulation::get().take_races(); }

std::vector<Given> take_trace() { return Simulation::get().take_trace(); }

void set_host_costs(const HostCosts& costs) {
  Simulation::get().set_host_costs(costs);
}

Counts counts() { return Simulation::get().counts(); }

std::int64_t host_waits() { return counts().host_waits; }

std::int64_t events_made() { return Simulation::get().events(); }

std::int64_t bytes_in_use(std::int64_t device) {
  return Memory::get().in_use(index(device));
}

std::int64_t peak_bytes(std::int64_t device) {
  return Memory::get().peak(index(device));
}

std::int64_t active_peak_bytes(std::int64_t device) {
  return Memory::get().active_peak(index(device));
}

void reset_peak(std::int64_t device) {
  Memory::get().resetPeakStats(index(device));
}

void set_memory_limit(std::int64_t device, std::optional<std::int64_t> bytes) {
  Memory::get().set_limit(
      index(device),
      bytes ? std::make_optional<std::size_t>(*bytes) : std::nullopt);
}

instruments::FailNth& failing(Operation operation) {
  return Simulation::get().failing(operation);
}

void empty_cache() { Memory::get().emptyCache(); }

void set_microbatch(std::optional<std::int64_t> (*microbatch)()) {
  Simulation::get().set_microbatch(microbatch);
}

void busy(const at::Tensor& tensor, double seconds) {
  Simulation::get().enqueue(
      stream_of(tensor),
      {"busy", {access(tensor, /*write=*/true)}, [seconds] {
         std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
       }});
}

}  // namespace gpipe::simulated
