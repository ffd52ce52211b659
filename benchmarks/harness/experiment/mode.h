// Modes: the ways to get the numbers of a table. Does not include LibTorch.
#pragma once

#include <string>

namespace gpipe::benchmarks {

// A way to get the numbers of a table.
enum class Mode {
  kMeasure,   // training on the devices of this machine
  kSimulate,  // layers timed on one device, and a simulated schedule
  kDryRun,    // training on meta devices, which count the bytes
};

// Returns the adjective for numbers of this mode: "measured", "simulated" or
// "dry-run".
std::string to_string(Mode mode);

// The quantity that a table is about. kTimeline: speed, memory and idle time of
// a step on a device per partition.
enum class TableKind { kSpeed, kMemory, kTimeline };

// Parses --mode=auto|measure|simulate|dry_run. auto means kMeasure. If there
// are not `enough_accelerators`, it means kDryRun for a memory table, since
// such a table needs its published sizes, and kSimulate for a timeline.
//
// Throws std::invalid_argument for another text, for simulate on a memory
// table, since the simulator computes times only, and for dry_run on a
// timeline.
Mode parse_mode(const std::string& text, TableKind table_kind,
                bool enough_accelerators);

// Parses --scale=auto|paper|small and returns true for small. auto means small
// if the mode is kMeasure and there are no `accelerators`.
//
// Throws std::invalid_argument for another text.
bool parse_scale(const std::string& text, Mode mode, bool accelerators);

}  // namespace gpipe::benchmarks
