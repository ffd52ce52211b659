// --plot and --timeline: a result as pictures.
#pragma once

#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/output_file.h"

namespace gpipe::benchmarks {

class Pictures {
 public:
  // Of the flags. std::invalid_argument for a path that cannot be written, so
  // make one before the work.
  Pictures();

  bool wants_timelines() const { return timeline_.is_wanted(); }

  // Writes what was asked for: the chart of plot.h, and the timelines of the
  // outcomes that have one, on one scale of time.
  void write(const Benchmark& benchmark, Mode mode,
             const std::vector<Outcome>& outcomes) const;

 private:
  OutputFile plot_;
  OutputFile timeline_;
};

}  // namespace gpipe::benchmarks
