// Measures the cost of recording the timeline of a step: it runs the same step
// with and without recording, in turn.

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

// Must follow LibTorch's headers, which define the same macros if glog has not.
#include <gflags/gflags.h>

#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/step_subjects.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

DEFINE_int64(rounds, 15,
             "Number of steps of each kind, in turn; the table shows medians.");
DEFINE_int64(microbatches, 4, "Micro-batches per step.");
DEFINE_int64(partitions, 2, "Number of CPU partitions, with one thread each.");

namespace gpipe::benchmarks {
namespace {

// Returns a balance with about the same number of layers per partition.
std::vector<int64_t> balance_of(int64_t layers) {
  std::vector<int64_t> balance;
  for (int64_t j = 0; j < FLAGS_partitions; ++j) {
    balance.push_back((j + 1) * layers / FLAGS_partitions -
                      j * layers / FLAGS_partitions);
  }
  return balance;
}

Row run(const StepSubject& subject) {
  torch::manual_seed(0);
  const auto model = subject.model();
  GPipe pipeline(
      model, GPipeOptions(balance_of(static_cast<int64_t>(model->size())))
                 .devices(std::vector<c10::Device>(FLAGS_partitions, at::kCPU))
                 .threads_per_partition(1));
  const Schedule schedule = one_forward_one_backward(
      static_cast<int>(FLAGS_partitions), static_cast<int>(FLAGS_microbatches));
  std::vector<double> wall[2], cpu[2], drawing;
  for (int64_t round = -1; round < FLAGS_rounds; ++round) {
    // The order alternates, since the second step may find warmer caches.
    for (const bool traced : {round % 2 == 0, round % 2 != 0}) {
      pipeline->zero_grad();
      torch::manual_seed(1);  // the same dropout masks in every step
      const Stopwatch watch({at::Device(at::kCPU)});
      const StepResult result =
          pipeline->train_step(subject.input, subject.input, mean_square,
                               schedule, TrainOptions().timeline(traced));
      const Duration duration = watch.elapsed();
      if (round < 0) continue;
      wall[traced].push_back(duration.wall_seconds);
      cpu[traced].push_back(duration.cpu_seconds);
      if (!traced) continue;
      const Stopwatch drawn({at::Device(at::kCPU)});
      to_chrome_trace(*result.timeline);
      drawing.push_back(drawn.elapsed().wall_seconds);
    }
  }
  const auto more = [](const std::vector<double>(&of)[2]) {
    return Cell(100 * (median(of[true]) / median(of[false]) - 1), 2);
  };
  return {
      subject.name,
      {Cell(1e3 * median(wall[false]), 1), Cell(1e3 * median(wall[true]), 1),
       more(wall), more(cpu), Cell(1e3 * median(drawing), 2)},
      {},
      ""};
}

// Returns the mean time of `part` in microseconds.
double microseconds_of(const std::function<void()>& part) {
  constexpr int kCount = 20000;
  const Stopwatch watch({at::Device(at::kCPU)});
  for (int k = 0; k < kCount; ++k) part();
  return 1e6 * watch.elapsed().wall_seconds / kCount;
}

int measure() {
  check_format();
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
  print_table(table, "trace_cost", describe_environment());
  return kOk;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "trace_cost",
      "milliseconds of steps with and without a recorded timeline.",
      {"", "--rounds=31 --partitions=4"}};
  return gpipe::benchmarks::run_program(argc, argv, program,
                                        gpipe::benchmarks::measure);
}
