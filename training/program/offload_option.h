// The option --offload.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balancing/balancing.h"
#include "gpipe/schedule.h"

namespace gpipe::train_program {

// What --offload=auto knows of the device of one rank.
struct RankDevice {
  bool is_accelerator = false;
  double memory_bytes = 0;  // 0: not known
};

// Returns what LibTorch says of `device`.
RankDevice rank_device(const c10::Device& device);

// Converts a device to text and back, to tell other processes. rank_device_of()
// throws c10::ValueError if `text` is not from to_text().
std::string to_text(const RankDevice& device);
RankDevice rank_device_of(const std::string& text);

// Returns the bytes that each rank of `schedule` holds at its peak: parameters,
// gradients, the state of an optimizer like Adam, and what micro-batches keep
// for their backward. `balance`: the layers of each stage. `memory`: of one
// micro-batch. Memory that operators need only while they run is not counted.
std::vector<double> predicted_bytes(const Schedule& schedule,
                                    Checkpoint checkpoint,
                                    const std::vector<int64_t>& balance,
                                    const balancing::MemoryProfile& memory);

// Returns the ranks that offload if --offload is auto: none if a rank has no
// accelerator; all if the memory of a device is not known; else those for which
// `predicted` is more than 4/5 of the memory of their device. The rest is for
// operators and the allocator.
std::vector<int64_t> ranks_to_offload(const std::vector<RankDevice>& devices,
                                      const std::vector<double>& predicted);

// Returns `schedule` with the copies that `offload` asks for: "none", the
// number of actions for distant_cells() (gpipe/schedule.h), or "auto". With
// auto the number is 2, so that the copies of a cell have at least one action
// to run beside, on the ranks that `automatic` returns, which is called only
// then.
//
// Throws c10::ValueError if `offload` is something else.
Schedule with_offload_option(
    Schedule schedule, const std::string& offload,
    const std::function<std::vector<int64_t>()>& automatic);

}  // namespace gpipe::train_program
