// The names of the folders in the folder of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::internal {

// Returns the number that `text` consists of, or nullopt if it is anything
// else or negative.
std::optional<int64_t> number_of(std::string_view text);

// Returns the name of a complete step: "step-000000000123".
std::string step_name(int64_t step);

// Returns the steps in the folder of a run, complete or damaged, in ascending
// order. Throws c10::Error if the folder cannot be listed.
std::vector<int64_t> steps_in(const std::string& folder);

// Returns the name of a step that this process is writing:
// ".step-000000000123.tmp-host-4711".
std::string temporary_name(int64_t step);

// Returns the name to which a step moves before it is removed. `temporary`:
// the name or path of the step that replaces it.
std::string aside_name(const std::string& temporary);

// Returns whether a name is that of a step that no process writes any more. For
// a process of this machine, asks the system. The state of another machine is
// unknown, but its folder is left over if it is for `step` or an earlier one.
bool is_leftover(const std::string& name, int64_t step);

}  // namespace gpipe::internal
