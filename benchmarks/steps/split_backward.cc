// Measures the cost of a backward in two parts, and whether it changes the
// gradients. It runs the same step of one partition with 1F1B and with ZB-H1,
// which differ only in that.

#include <ATen/Parallel.h>
#include <gflags/gflags.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/output.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/steps/step_subjects.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

DEFINE_int64(rounds, 9,
             "Number of steps of each kind, in turn; the table shows medians.");
DEFINE_int64(microbatches, 4, "Micro-batches per step.");

namespace gpipe::benchmarks {
namespace {

double seconds_of(GPipe& pipeline, const at::Tensor& input,
                  const Schedule& schedule) {
  pipeline->zero_grad();
  torch::manual_seed(1);  // the same dropout masks in every step
  return time_of(
             [&] { pipeline->train_step(input, input, mean_square, schedule); })
      .wall_seconds;
}

std::vector<at::Tensor> gradients(const GPipe& pipeline) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& each : pipeline->parameters()) {
    if (each.grad().defined()) result.push_back(each.grad().clone());
  }
  return result;
}

// Returns the largest difference between two gradients, relative to the largest
// value of the gradient. Returns 0 if the bits are equal.
double difference(const std::vector<at::Tensor>& a,
                  const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k].equal(b[k])) continue;
    largest = std::max(
        largest, ((a[k] - b[k]).abs().max() / b[k].abs().max()).item<double>());
  }
  return largest;
}

Row run(const StepSubject& subject) {
  torch::manual_seed(0);
  const auto model = subject.model();
  const auto layers = static_cast<int64_t>(model->size());
  GPipe pipeline(model, GPipeOptions({layers})
                            .devices({at::kCPU})
                            .checkpoint(Checkpoint::kNever)
                            .threads_per_partition(1));
  const int count = static_cast<int>(FLAGS_microbatches);
  const auto step = [&](const Schedule& schedule) {
    return
        [&, schedule] { return seconds_of(pipeline, subject.input, schedule); };
  };
  const auto whole_step = step(one_forward_one_backward(1, count));
  const auto parts_step = step(zero_bubble_h1(1, count));
  whole_step();
  const std::vector<at::Tensor> expected = gradients(pipeline);
  parts_step();
  const double apart = difference(gradients(pipeline), expected);
  const auto seconds = interleaved_rounds<double>({FLAGS_rounds, /*warm_up=*/0},
                                                  {whole_step, parts_step});
  const double whole = median(seconds[0]), parts = median(seconds[1]);
  return {subject.name,
          {Cell(1e3 * whole, 1), Cell(1e3 * parts, 1),
           Cell(100 * (parts / whole - 1), 1),
           apart == 0 ? Cell("equal bits") : Cell(1e6 * apart, 3)},
          {},
          ""};
}

std::vector<Table> measure() {
  if (FLAGS_microbatches <= 0 || FLAGS_rounds <= 0) {
    throw std::invalid_argument("--microbatches and --rounds must be above 0");
  }
  at::set_num_threads(1);
  Table table;
  table.title = "A step with backwards in two parts, beside whole ones";
  table.name_column = "model";
  table.columns = {"whole ms", "two parts ms", "more %", "gradients"};
  for (const StepSubject& subject : step_subjects()) {
    table.rows.push_back(run(subject));
  }
  table.notes.push_back(
      "One partition, one thread, " + std::to_string(FLAGS_microbatches) +
      " micro-batches. Gradients: equal bits, or the largest difference in "
      "millionths of the gradient's largest value.");
  return {table};
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_table_program(
      argc, argv,
      {"split_backward",
       "milliseconds of steps with backwards in two parts, beside whole ones.",
       {"", "--microbatches=8 --rounds=15"}},
      gpipe::benchmarks::measure);
}
