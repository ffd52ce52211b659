// The gain from each mechanism of torchgpipe (Kim et al., arXiv 2004.09910):
// U-Net in four partitions, with mechanisms switched off.
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/options.h"
#include "benchmarks/harness/run.h"
#include "benchmarks/timeline.h"

namespace gpipe::benchmarks {
namespace {

// Throws std::invalid_argument for options that other programs of the harness
// support, but this one does not.
void check(const Benchmark& benchmark, RunOptions& options) {
  if (options.world) {
    throw std::invalid_argument(
        "--distributed: this program runs its partitions in one process; use "
        "unet_speed --distributed");
  }
  if (options.rows.control) {
    throw std::invalid_argument(
        "--control: the rows of this program differ in mechanisms, not in "
        "partitions; use unet_speed --control");
  }
  if (options.samples != options.workload(benchmark).samples_per_epoch) {
    throw std::invalid_argument(
        "--samples: an epoch of this program is one step; use --batch_size, or "
        "unet_speed --samples");
  }
  if (options.settings.balance_by_time) {
    throw std::invalid_argument(
        "--balance=auto: this program compares its rows on one cut; give four "
        "numbers, or omit --balance for torchgpipe's cut");
  }
  // An epoch is one step, for any --batch_size.
  options.samples = options.experiments.front().batch_size;
}

void run(const Benchmark& benchmark, const RunOptions& options, bool timelines,
         std::vector<Outcome>* rows, std::vector<std::string>* notes) {
  if (options.mode == Mode::kSimulate) {
    simulate_rows(benchmark, options, rows, notes);
    return;
  }
  measure_rows(benchmark, options, timelines, rows);
  notes->emplace_back(
      "An epoch is one step with the loss, without the optimizer. Rows take "
      "turns.");
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  using namespace gpipe::benchmarks;  // NOLINT
  const Benchmark benchmark = timeline_benchmark();
  return run_benchmark(
      argc, argv, benchmark,
      {[&](RunOptions& options) { check(benchmark, options); },
       [](const RunOptions& options, std::vector<Outcome>* rows) {
         plan_devices(options.settings.devices, rows);
       },
       [&](const RunOptions& options, bool timelines,
           std::vector<Outcome>* rows, std::vector<std::string>* notes) {
         run(benchmark, options, timelines, rows, notes);
       },
       [&](const std::vector<Outcome>& rows) {
         return timeline_table(benchmark, rows);
       }});
}
