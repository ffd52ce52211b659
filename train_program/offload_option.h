// The option --offload.
#pragma once

#include <optional>
#include <string>

#include "gpipe/schedule.h"

namespace gpipe::train_program {

// Returns the number of actions for distant_cells() (gpipe/schedule.h) that
// `offload` asks for, or none if nothing is offloaded. `offload`: "none", a
// number, or "auto", which is 2 for accelerators and none for CPUs. With 2, the
// copies of a cell have at least one action to run beside.
//
// Throws c10::ValueError if `offload` is something else.
std::optional<int> offload_distance(const std::string& offload,
                                    bool accelerators);

// Returns `schedule` with the copies that `offload` asks for; throws as above.
Schedule with_offload_option(Schedule schedule, const std::string& offload,
                             bool accelerators);

}  // namespace gpipe::train_program
