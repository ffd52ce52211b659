// Measures the cost of recording the timeline of a step: it runs the same step
// with and without recording, in turn.

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gflags/gflags.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balancing/partition.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/steps/step_subjects.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

DEFINE_int64(rounds, 15,
             "Number of steps of each kind, in turn; the table shows medians.");
DEFINE_int64(microbatches, 4, "Micro-batches per step.");
DEFINE_int64(partitions, 2, "Number of CPU partitions, with one thread each.");

namespace gpipe::benchmarks {
namespace {

Row run(const StepSubject& subject) {
  torch::manual_seed(0);
  const auto model = subject.model();
  const std::vector<double> equal_costs(model->size(), 1);
  GPipe pipeline(
      model,
      GPipeOptions(balancing::balance_cost(equal_costs, FLAGS_partitions))
          .devices(std::vector<c10::Device>(FLAGS_partitions, at::kCPU))
          .threads_per_partition(1));
  const Schedule schedule = one_forward_one_backward(
      static_cast<int>(FLAGS_partitions), static_cast<int>(FLAGS_microbatches));
  using Times = std::array<double, 3>;  // wall and CPU of a step, drawing
  const auto step = [&](bool traced) {
    return [&, traced] {
      pipeline->zero_grad();
      torch::manual_seed(1);  // the same dropout masks in every step
      StepResult result;
      const Duration took = time_of([&] {
        result =
            pipeline->train_step(subject.input, subject.input, mean_square,
                                 schedule, TrainOptions().timeline(traced));
      });
      Duration drawing;
      if (traced) drawing = time_of([&] { to_chrome_trace(*result.timeline); });
      return Times{took.wall_seconds, took.cpu_seconds, drawing.wall_seconds};
    };
  };
  const auto rounds = interleaved_rounds<Times>(
      {FLAGS_rounds, /*warm_up=*/1, /*alternate=*/true},
      {step(false), step(true)});
  const auto median_of = [&](bool traced, std::size_t part) {
    std::vector<double> seconds;
    for (const Times& each : rounds[traced]) seconds.push_back(each[part]);
    return median(std::move(seconds));
  };
  const auto more = [&](std::size_t part) {
    return Cell(100 * (median_of(true, part) / median_of(false, part) - 1), 2);
  };
  return {
      subject.name,
      {Cell(1e3 * median_of(false, 0), 1), Cell(1e3 * median_of(true, 0), 1),
       more(0), more(1), Cell(1e3 * median_of(true, 2), 2)},
      {},
      ""};
}

// Returns the mean time of `part` in microseconds.
double microseconds_of(const std::function<void()>& part) {
  constexpr int kCount = 20000;
  const Duration all = time_of([&] {
    for (int k = 0; k < kCount; ++k) part();
  });
  return 1e6 * all.wall_seconds / kCount;
}

std::vector<Table> measure() {
  if (FLAGS_microbatches <= 0 || FLAGS_rounds <= 0 || FLAGS_partitions <= 0) {
    throw std::invalid_argument(
        "--microbatches, --rounds and --partitions must be above 0");
  }
  at::set_num_threads(1);
  Table table;
  table.title = "A step whose timeline is recorded, beside one without";
  table.name_column = "model";
  table.columns = {"plain ms", "recorded ms", "more wall %", "more CPU %",
                   "drawing ms"};
  for (const StepSubject& subject : step_subjects()) {
    table.rows.push_back(run(subject));
  }
  table.notes.push_back(
      std::to_string(FLAGS_partitions) + " CPU partitions of one thread, " +
      std::to_string(FLAGS_microbatches) +
      " micro-batches, 1F1B. Drawing: the trace as JSON, after the step.");
  const double memory =
      microseconds_of([] { TrainOptions().memory()(at::Device(at::kCPU)); });
  const double range = microseconds_of(
      [] { const at::RecordFunction range(at::RecordScope::USER_SCOPE); });
  table.notes.push_back("The recording reads the memory twice per action, " +
                        Cell(memory, 2).text() +
                        " us each. Without a timeline, an action has " +
                        "a range for profilers: " + Cell(range, 3).text() +
                        " us if there is no profiler.");
  return {table};
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_table_program(
      argc, argv,
      {"trace_cost",
       "milliseconds of steps with and without a recorded timeline.",
       {"", "--rounds=31 --partitions=4"}},
      gpipe::benchmarks::measure);
}
