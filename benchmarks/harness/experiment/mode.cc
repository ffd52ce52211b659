#include "benchmarks/harness/experiment/mode.h"

#include <stdexcept>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {

std::string to_string(Mode mode) {
  switch (mode) {
    case Mode::kMeasure:
      return "measured";
    case Mode::kSimulate:
      return "simulated";
    case Mode::kDryRun:
      return "dry-run";
  }
  return "unknown";
}

Mode parse_mode(const std::string& text, TableKind table_kind,
                bool enough_accelerators) {
  const bool memory = table_kind == TableKind::kMemory;
  const bool timeline = table_kind == TableKind::kTimeline;
  switch (
      parse_choice("mode", text, {"auto", "measure", "simulate", "dry_run"})) {
    case 0:
      if (enough_accelerators) return Mode::kMeasure;
      return memory     ? Mode::kDryRun
             : timeline ? Mode::kSimulate
                        : Mode::kMeasure;
    case 1:
      return Mode::kMeasure;
    case 2:
      if (memory) {
        throw std::invalid_argument(
            "--mode=simulate computes times, but this table is about memory: "
            "use --mode=dry_run or --mode=measure");
      }
      return Mode::kSimulate;
    default:
      if (timeline) {
        throw std::invalid_argument(
            "--mode=dry_run has no times: use simulate, which shows memory, "
            "too, or the dry run of a memory table");
      }
      return Mode::kDryRun;
  }
}

bool parse_scale(const std::string& text, Mode mode, bool accelerators) {
  const size_t scale = parse_choice("scale", text, {"auto", "paper", "small"});
  if (scale != 0) return scale == 2;
  return mode == Mode::kMeasure && !accelerators;
}

}  // namespace gpipe::benchmarks
