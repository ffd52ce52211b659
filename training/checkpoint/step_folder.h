// The files in the folder of one step of a run checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "models/weights/run_shard.h"
#include "training/checkpoint/manifest.h"
#include "training/run_state.h"

namespace gpipe::internal {

// Writes the files of this process and returns their manifest. Throws as
// write_tensor_file() does.
Manifest write_part(const std::string& folder, const RunState& state,
                    const RunShard& shard);

// Writes the manifest of all processes. Throws c10::Error if that fails.
void write_manifest(const std::string& folder, const Manifest& manifest);

// Returns whether a step looks complete. Does not read the tensors.
bool has_all_files(const std::string& folder, int64_t step);

// Returns the state of a step for the process `shard`, as
// RunFiles::load_latest() describes it. Throws Damage
// (training/checkpoint/damage.h) if the manifest or a file is missing, damaged
// or of another step, and c10::ValueError if the format is of a later version.
RunState read_state(const std::string& folder, int64_t step,
                    const std::optional<std::set<std::string>>& names,
                    const RunShard& shard);

}  // namespace gpipe::internal
