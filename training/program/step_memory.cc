#include "training/program/step_memory.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "gpipe/base/instruments.h"
#include "gpipe/base/text.h"

namespace gpipe::train_program {
namespace {

// Returns the bytes of parameters and buffers on `device`.
int64_t module_bytes(const torch::nn::Module& module,
                     const c10::Device& device) {
  std::set<const c10::StorageImpl*> seen;
  int64_t bytes = 0;
  const auto count = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() != device ||
        !tensor.has_storage() ||
        !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      return;
    }
    bytes += static_cast<int64_t>(tensor.storage().nbytes());
  };
  for (const at::Tensor& each : module.parameters()) count(each);
  for (const at::Tensor& each : module.buffers()) count(each);
  return bytes;
}

}  // namespace

void StepMemory::count_cpu_tensors() {
  instruments::CountingAllocator::install();
}

StepMemory::StepMemory(const torch::nn::Module& module,
                       std::vector<PlannedMemory> planned) {
  for (PlannedMemory& each : planned) {
    const int64_t before = instruments::live_bytes(each.device) -
                           module_bytes(module, each.device);
    places_.push_back({std::move(each), before});
  }
}

void StepMemory::begin() {
  for (const Place& place : places_) {
    instruments::reset_peak_bytes(place.planned.device);
  }
}

void StepMemory::end() {
  for (Place& place : places_) {
    place.peak =
        std::max(place.peak,
                 instruments::peak_bytes(place.planned.device) - place.before);
  }
}

std::vector<std::string> StepMemory::lines() const {
  std::vector<std::string> result;
  for (const Place& place : places_) {
    const auto measured = static_cast<double>(place.peak);
    const double predicted = place.planned.bytes;
    std::string line =
        (place.planned.ranks.size() == 1 ? "partition " : "partitions ") +
        absl::StrJoin(place.planned.ranks, ",") + " on " +
        place.planned.device.str() + ": at most " + bytes_text(measured) +
        " in use; " + bytes_text(predicted) + " were predicted";
    if (measured > 0) {
      line += absl::StrFormat(" (%+.1f %%)", 100 * (predicted / measured - 1));
    }
    result.push_back(std::move(line));
  }
  return result;
}

}  // namespace gpipe::train_program
