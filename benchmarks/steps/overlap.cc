// Measures whether partitions work at the same time. The layers only sleep, so
// it needs neither many cores nor accelerators, and no other effect is
// measured.

#include <gflags/gflags.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/output.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/steps/nap.h"
#include "gpipe/gpipe.h"
#include "gpipe/text/format.h"

DEFINE_int64(partitions, 4, "Number of CPU partitions, with one layer each.");
DEFINE_int64(sleep_ms, 20,
             "Milliseconds of a layer for a micro-batch, in forward and in "
             "backward.");
DEFINE_int64(rounds, 5, "Number of measurements; the table shows the median.");

namespace gpipe::benchmarks {
namespace {

double sleep_seconds() { return static_cast<double>(FLAGS_sleep_ms) * 1e-3; }

struct SleeperImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    return Nap::apply(input, sleep_seconds(), sleep_seconds());
  }
};
TORCH_MODULE(Sleeper);

Row make_row(const std::string& name, std::vector<Duration> durations,
             double ideal, double tolerance) {
  const double measured = median(wall_seconds(durations));
  const double goal = ideal * tolerance;
  return {name,
          {Cell(measured, 4), Cell(ideal, 4), Cell(goal, 4),
           measured <= goal ? "yes" : "no"},
          std::move(durations),
          ""};
}

std::vector<Table> measure() {
  const Settings settings = parse_settings();
  const int64_t chunks = settings.chunks.value_or(8);
  const auto checkpoint = settings.checkpoint.value_or(Checkpoint::kNever);
  if (FLAGS_partitions <= 0 || FLAGS_rounds <= 0 || FLAGS_sleep_ms <= 0) {
    throw std::invalid_argument(
        "--partitions, --rounds and --sleep_ms must be above 0");
  }
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < FLAGS_partitions; ++i) layers->push_back(Sleeper());
  const std::vector<int64_t> balance(FLAGS_partitions, 1);
  const std::vector<torch::Device> devices(FLAGS_partitions, at::kCPU);
  GPipe pipeline(layers, GPipeOptions(balance)
                             .devices(devices)
                             .chunks(chunks)
                             .checkpoint(checkpoint)
                             .threads_per_partition(1));

  const at::Tensor input = at::ones({chunks, 1}).requires_grad_();
  // Returns the duration of a forward and of a forward with its backward.
  const auto pass = [&] {
    const Stopwatch watch(devices);
    const at::Tensor output = pipeline->forward(input);
    const Duration forward = watch.elapsed();
    output.sum().backward();
    return std::pair(forward, watch.elapsed());
  };
  const auto one_nap = [] {
    return std::pair(time_of([] { nap(sleep_seconds()); }), Duration());
  };
  const auto rounds = interleaved_rounds<std::pair<Duration, Duration>>(
      {FLAGS_rounds}, {one_nap, pass});
  std::vector<Duration> naps, forward, both;
  for (const auto& each : rounds[0]) naps.push_back(each.first);
  for (const auto& each : rounds[1]) {
    forward.push_back(each.first);
    both.push_back(each.second);
  }

  // Each pass takes chunks + partitions - 1 slots: until the last micro-batch
  // has left the last partition.
  const double ideal =
      static_cast<double>(chunks + FLAGS_partitions - 1) * sleep_seconds();
  Table table;
  table.title = "Overlap of " + std::to_string(FLAGS_partitions) +
                " CPU partitions, " + std::to_string(chunks) +
                " micro-batches, layers that sleep " +
                std::to_string(FLAGS_sleep_ms) + " ms, checkpoint " +
                to_string(checkpoint);
  table.name_column = "pass";
  table.columns = {"seconds", "ideal", "goal", "met"};
  // The goals are 0.24 s for an ideal of 0.22 s, and 0.47 s for 0.44 s.
  table.rows.push_back(
      make_row("forward", std::move(forward), ideal, 0.24 / 0.22));
  table.rows.push_back(make_row("forward and backward", std::move(both),
                                2 * ideal, 0.47 / 0.44));
  // On a busy machine every sleep ends late, whether or not in a pipeline.
  table.notes.push_back(
      format("Medians of %ld rounds. A sleep of %ld ms by itself took %.2f ms.",
             FLAGS_rounds, FLAGS_sleep_ms, median(wall_seconds(naps)) * 1e3));
  if (checkpoint != Checkpoint::kNever) {
    table.notes.push_back("The ideal does not include recomputing.");
  }
  return {table};
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_table_program(
      argc, argv,
      {"overlap",
       "seconds of a step with layers that sleep, beside the seconds of\n"
       "perfect overlap.",
       {"", "--partitions=8 --chunks=32 --sleep_ms=5"}},
      gpipe::benchmarks::measure);
}
