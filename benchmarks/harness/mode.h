// Ways to fill a table: where its numbers come from. No LibTorch.
#pragma once

#include <string>

namespace gpipe::benchmarks {

enum class Mode {
  kMeasure,   // trained on the devices that there are
  kSimulate,  // times of layers on one device, and the simulator
  kDryRun,    // trained without memory, where all that is asked for is counted
};

// Of a number that was found that way: "measured", "simulated", "dry-run".
std::string name_of(Mode mode);

// What a table is about.
enum class Subject { kSpeed, kMemory };

// --mode=auto|measure|simulate|dry_run. auto is kMeasure, but for a memory
// table without `enough_accelerators`, whose sizes are the point of it:
// kDryRun. std::invalid_argument for another text, and for simulate on a memory
// table: the simulator tells times.
Mode parse_mode(const std::string& text, Subject subject,
                bool enough_accelerators);

// --scale=auto|paper|small: whether it is small. auto is small where it is
// measured without `accelerators`. std::invalid_argument for another text.
bool parse_scale(const std::string& text, Mode mode, bool accelerators);

}  // namespace gpipe::benchmarks
