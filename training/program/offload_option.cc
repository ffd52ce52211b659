#include "training/program/offload_option.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <sstream>
#include <system_error>
#include <utility>

#include "balancing/profile.h"
#include "balancing/stage_costs.h"
#include "gpipe/simulation.h"

namespace gpipe::train_program {
namespace {

constexpr int kAutomaticDistance = 2;
// Bytes per byte of trained parameters: the parameter, its gradient and two
// moments.
constexpr double kParamScale = 4;
constexpr double kUsablePart = 0.8;

// Returns the total memory of an accelerator; 0 if it is not known.
double memory_of(const c10::Device& device) {
  auto* const allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator) return 0;
  try {
    const auto index = device.has_index() ? device.index() : 0;
    return static_cast<double>(allocator->getMemoryInfo(index).second);
  } catch (const c10::Error&) {
    return 0;  // not all devices say it
  }
}

int distance_of(const std::string& offload) {
  int number = 0;
  const char* const end = offload.data() + offload.size();
  const auto [stop, error] = std::from_chars(offload.data(), end, number);
  TORCH_CHECK_VALUE(error == std::errc() && stop == end && number >= 0,
                    "--offload=", offload,
                    ": must be none, auto, or a number of actions >= 0");
  return number;
}

}  // namespace

RankDevice rank_device(const c10::Device& device) {
  RankDevice result;
  result.is_accelerator = !device.is_cpu() && !device.is_meta();
  if (result.is_accelerator) result.memory_bytes = memory_of(device);
  return result;
}

std::string to_text(const RankDevice& device) {
  std::ostringstream text;
  text.precision(17);
  text << (device.is_accelerator ? 1 : 0) << ' ' << device.memory_bytes;
  return text.str();
}

RankDevice rank_device_of(const std::string& text) {
  std::istringstream stream(text);
  RankDevice device;
  stream >> device.is_accelerator >> device.memory_bytes;
  TORCH_CHECK_VALUE(stream && stream.eof(), "'", text,
                    "' does not describe a device");
  return device;
}

std::vector<double> predicted_bytes(const Schedule& schedule,
                                    Checkpoint checkpoint,
                                    const std::vector<int64_t>& balance,
                                    const balancing::MemoryProfile& memory) {
  balancing::Profile profile;
  profile.rows = 1;
  profile.times.assign(memory.layers.size(), {1, 2});
  profile.memory = memory;
  const int64_t chunks = num_microbatches(schedule);
  const Costs costs = balancing::stage_costs(profile, /*rows=*/chunks, chunks,
                                             balance, /*speed=*/1, kParamScale);
  const int64_t recomputed = checkpointed_microbatches(checkpoint, chunks);
  return simulate(
             with_recompute(schedule, [&](int i) { return i < recomputed; }),
             costs)
      .peak_bytes;
}

std::vector<int64_t> ranks_to_offload(const std::vector<RankDevice>& devices,
                                      const std::vector<double>& predicted) {
  bool is_known = !predicted.empty();
  for (const RankDevice& device : devices) {
    if (!device.is_accelerator) return {};
    is_known = is_known && device.memory_bytes > 0;
  }
  std::vector<int64_t> ranks;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    if (is_known && predicted.at(r) <= kUsablePart * devices[r].memory_bytes) {
      continue;
    }
    ranks.push_back(static_cast<int64_t>(r));
  }
  return ranks;
}

Schedule with_offload_option(
    Schedule schedule, const std::string& offload,
    const std::function<std::vector<int64_t>()>& automatic) {
  if (offload == "none") return schedule;
  if (offload != "auto") {
    auto which = distant_cells(schedule, distance_of(offload));
    return with_offload(std::move(schedule), which);
  }
  const std::vector<int64_t> ranks = automatic();
  const std::vector<int> rank_of = rank_of_stage(schedule);
  const auto is_distant = distant_cells(schedule, kAutomaticDistance);
  return with_offload(std::move(schedule), [&](int stage, int microbatch) {
    const auto rank = rank_of[static_cast<std::size_t>(stage)];
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end() &&
           is_distant(stage, microbatch);
  });
}

}  // namespace gpipe::train_program
