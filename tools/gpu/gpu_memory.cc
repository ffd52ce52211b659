// The checks of gpu_checks.h that read the allocator's statistics.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <utility>

#include "gpipe/base/devices.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "tools/gpu/gpu_checks.h"
#include "tools/gpu/gpu_steps.h"

namespace gpipe::tools {
namespace {

constexpr auto kAll =
    static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
constexpr double kAllowedGrowth = 1.25;
constexpr int64_t kFewChunks = 8, kManyChunks = 64;

using Results = std::vector<at::Tensor>;

std::vector<c10::Device> each_once(std::vector<c10::Device> devices) {
  std::sort(devices.begin(), devices.end(),
            [](const auto& a, const auto& b) { return a.index() < b.index(); });
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

GPipe wide_pipeline(const std::vector<c10::Device>& devices, int64_t width) {
  torch::manual_seed(0);
  const auto partitions = static_cast<int64_t>(devices.size());
  return GPipe(wide_layers(partitions, width),
               GPipeOptions(std::vector<int64_t>(devices.size(), 3))
                   .devices(devices)
                   .checkpoint(Checkpoint::kNever));
}

bool has_cpu(const std::vector<c10::Device>& devices) {
  return std::any_of(devices.begin(), devices.end(),
                     [](const auto& device) { return device.is_cpu(); });
}

// Runs steps whose micro-batches have more rows each time, so that cached
// blocks of earlier steps do not fit.
Results growing_steps(GPipe& pipeline, int64_t rows) {
  constexpr int64_t kChunks = 4, kSteps = 6;
  const auto schedule = one_forward_one_backward(
      static_cast<int>(pipeline->devices().size()), kChunks);
  Results all;
  for (int64_t step = 1; step <= kSteps; ++step) {
    torch::manual_seed(static_cast<uint64_t>(step));
    const auto input = torch::rand({kChunks * rows * step / kSteps, 1});
    for (auto& result : results_of_step(pipeline, input, input, schedule, 0)) {
      all.push_back(std::move(result));
    }
  }
  return all;
}

// Allocates memory until `free` bytes are left on the device. Returns the
// tensor that holds the memory; undefined if less than `free` is left already.
at::Tensor fill(const c10::Device& device, int64_t free) {
  const auto now = static_cast<int64_t>(
      at::accelerator::getMemoryInfo(device.index()).first);
  if (now <= free) return {};
  return torch::empty({now - free},
                      torch::TensorOptions(torch::kByte).device(device));
}

int64_t retries(const std::vector<c10::Device>& devices) {
  int64_t sum = 0;
  for (const auto& device : devices) {
    sum += at::accelerator::getDeviceStats(device.index()).num_alloc_retries;
  }
  return sum;
}

}  // namespace

std::vector<PeakBytes> peaks_of_step(const std::vector<c10::Device>& devices,
                                     int64_t chunks, int64_t rows,
                                     int64_t width) {
  GPipe pipeline = wide_pipeline(devices, width);
  const auto schedule = one_forward_one_backward(
      static_cast<int>(devices.size()), static_cast<int>(chunks));
  const auto input = torch::rand({chunks * rows, 1}).to(devices.front());
  const auto target = torch::rand({chunks * rows, 1}).to(devices.back());
  const auto step = [&] {
    pipeline->train_step(input, target, squared_error, schedule);
    pipeline->zero_grad();
    synchronize(devices);
  };
  step();  // makes the allocations that stay, such as workspaces of cuBLAS
  at::accelerator::emptyCache();
  std::vector<PeakBytes> peaks;
  for (const auto& device : each_once(devices)) {
    const auto stats = at::accelerator::getDeviceStats(device.index());
    peaks.push_back({device, -stats.active_bytes[kAll].current,
                     -stats.allocated_bytes[kAll].current, 0});
    at::accelerator::resetPeakStats(device.index());
  }
  for (int k = 0; k < 3; ++k) step();
  for (auto& peak : peaks) {
    const auto stats = at::accelerator::getDeviceStats(peak.device.index());
    peak.active += stats.active_bytes[kAll].peak;
    peak.allocated += stats.allocated_bytes[kAll].peak;
    peak.reserved = stats.reserved_bytes[kAll].peak;
  }
  return peaks;
}

CheckResult compare_peaks(const std::vector<PeakBytes>& few,
                          const std::vector<PeakBytes>& many) {
  TORCH_CHECK_VALUE(few.size() == many.size(), "peaks of ", few.size(),
                    " devices and of ", many.size(),
                    ": measure both on the same devices");
  std::ostringstream text;
  bool grows = false, counted = true;
  for (std::size_t k = 0; k < few.size(); ++k) {
    const auto line = [&](const char* name, int64_t before, int64_t after) {
      text << few[k].device << " " << name << ": " << before << " bytes, "
           << after << " bytes\n";
      return static_cast<double>(after) >
             kAllowedGrowth * static_cast<double>(before);
    };
    // Every allocated byte is active, unless the allocator does not count.
    counted = counted && few[k].active >= few[k].allocated &&
              many[k].active >= many[k].allocated;
    const bool active = line("active", few[k].active, many[k].active);
    const bool allocated =
        line("allocated", few[k].allocated, many[k].allocated);
    line("reserved", few[k].reserved, many[k].reserved);
    grows = grows || active || allocated;
  }
  if (!counted) {
    text << "the allocator of these devices does not count active bytes";
    return {CheckOutcome::kNotPossible, text.str()};
  }
  text << "peaks of active and allocated bytes "
       << (grows ? "grow with the number of micro-batches by more than "
                 : "grow by at most ")
       << "a quarter";
  return {grows ? CheckOutcome::kFailed : CheckOutcome::kPassed, text.str()};
}

CheckResult check_memory(const std::vector<c10::Device>& devices, int64_t rows,
                         int64_t width) {
  if (has_cpu(devices)) {
    return {CheckOutcome::kNotPossible,
            "a CPU has no allocator that counts active bytes"};
  }
  const auto few = peaks_of_step(devices, kFewChunks, rows, width);
  const auto many = peaks_of_step(devices, kManyChunks, rows, width);
  CheckResult result = compare_peaks(few, many);
  result.text =
      "Peaks of a 1F1B step with 8 and with 64 micro-batches:\n" + result.text;
  return result;
}

CheckResult check_near_full(const std::vector<c10::Device>& devices,
                            int64_t rows, int64_t width) {
  if (has_cpu(devices)) {
    return {CheckOutcome::kNotPossible,
            "a CPU has no limit of memory to reach"};
  }
  GPipe pipeline = wide_pipeline(devices, width);
  const auto unique = each_once(devices);
  for (const auto& device : unique) {
    at::accelerator::resetPeakStats(device.index());
  }
  const Results expected = growing_steps(pipeline, rows);
  std::vector<int64_t> needed;
  for (const auto& device : unique) {
    const auto stats = at::accelerator::getDeviceStats(device.index());
    needed.push_back(stats.allocated_bytes[kAll].peak -
                     stats.allocated_bytes[kAll].current);
  }
  std::ostringstream text;
  bool reached = false;
  for (const double share : {2.0, 1.6, 1.3, 1.15, 1.05}) {
    synchronize(devices);
    at::accelerator::emptyCache();
    std::vector<at::Tensor> fillers;
    for (std::size_t k = 0; k < unique.size(); ++k) {
      const auto free = share * static_cast<double>(needed[k]);
      fillers.push_back(fill(unique[k], static_cast<int64_t>(free)));
    }
    const int64_t before = retries(unique);
    text << share << " times the needed memory is free: ";
    try {
      const double difference =
          largest_difference(growing_steps(pipeline, rows), expected);
      const int64_t count = retries(unique) - before;
      text << count << " retries of the allocator, largest difference "
           << difference << "\n";
      if (difference != 0) {
        text << "gradients change when memory is short";
        return {CheckOutcome::kFailed, text.str()};
      }
      reached = reached || count > 0;
    } catch (const c10::OutOfMemoryError&) {
      text << "out of memory\n";
      pipeline->zero_grad();
    }
  }
  text << (reached ? "equal bits with retries of the allocator"
                   : "no completed step made the allocator retry");
  return {reached ? CheckOutcome::kPassed : CheckOutcome::kNotPossible,
          text.str()};
}

}  // namespace gpipe::tools
