// The flags that a run stores in its run checkpoints. They prevent a run from
// resuming with the flags of another run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Flags ("--lr") and their values.
using FlagValues = std::map<std::string, std::string>;

// Return the flags that a run must keep when it resumes, and those that it may
// change.
FlagValues fixed_flags(const Options& options, const Task& task);
FlagValues changeable_flags(const Options& options, const Task& task);

// Returns the flags that must be equal in all processes of a run: the fixed and
// the changeable flags, those that control the loop, and a checksum of the
// data. Instead of a path, which may differ between machines, it contains only
// whether one is given. For --model, it contains ModelSource::description().
FlagValues shared_flags(const Options& options, const Task& task);

// Convert flags to a text for all_gather() and back.
std::string bytes_of(const FlagValues& flags);
FlagValues parse_flag_values(const std::string& bytes);

// Throws c10::ValueError if a flag differs between processes. `all`: the flags
// of each process, by rank. The text names each such flag, with its value in
// process 0 and in another process.
void check_same_flags(const std::vector<FlagValues>& all);

// Throws c10::ValueError if a flag in `saved` differs from `now`. The text
// names each such flag with both values. `folder`: where `saved` comes from.
void check_fixed_flags(const FlagValues& saved, const FlagValues& now,
                       const std::string& folder);

// Returns one line for each flag that differs between `saved` and `now`.
std::vector<std::string> changes(const FlagValues& saved,
                                 const FlagValues& now);

}  // namespace gpipe::train_program
