// The folder of one step of a run checkpoint: its name and its files.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/weights/run_shard.h"
#include "training/files/manifest.h"
#include "training/optimizer_state.h"
#include "training/run_state.h"

namespace gpipe::internal {

// ---- Names

// Returns the number that `text` consists of, or nullopt if it is anything
// else or negative.
std::optional<int64_t> number_of(std::string_view text);

// Returns the name of a complete step: "step-000000000123".
std::string step_name(int64_t step);

// Returns the steps in the folder of a run, complete or damaged, in ascending
// order. Throws c10::Error if the folder cannot be listed.
std::vector<int64_t> steps_in(const std::string& folder);

// Returns a line about the last of `steps`, which are in ascending order in the
// folder of a run, if it is later than `step`. Returns "" if none is.
std::string later_step(const std::string& folder,
                       const std::vector<int64_t>& steps, int64_t step);

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

// ---- The state of an optimizer that is spread over replicas

// Replaces the states of rows by states of whole parameters. Throws Damage
// if rows are missing or do not fit together.
void join_shards(OptimizerState& state);

// ---- Files

// Writes the files of this process and returns their manifest. Throws as
// write_tensor_file() does.
Manifest write_part(const std::string& folder, const RunState& state,
                    const RunShard& shard);

// Returns whether a step looks complete. Does not read the tensors.
bool has_all_files(const std::string& folder, int64_t step);

// Throws c10::ValueError if the step in `folder` and the new `manifest` of the
// same step both have a model, but no name of a tensor in common. Takes a step
// that is missing, damaged or of a later version. Reads no tensors.
void check_replaceable(const std::string& folder, const Manifest& manifest);

// Returns the state of a step for the process `shard`, as
// RunFiles::load_latest() describes it. Throws Damage
// if the manifest or a file is missing, damaged
// or of another step, and c10::ValueError if the format is of a later version.
RunState read_state(const std::string& folder, int64_t step,
                    const std::optional<std::set<std::string>>& names,
                    const RunShard& shard);

}  // namespace gpipe::internal
