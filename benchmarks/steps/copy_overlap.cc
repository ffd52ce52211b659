// Measures whether copies between devices overlap with computation. It runs on
// simulated accelerators, whose layers and copies take a given time. So it
// needs no GPU, and no other effect is measured.

#include <gflags/gflags.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/copy_streams.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/harness/throughput.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/text/format.h"

DEFINE_int64(partitions, 4,
             "Number of simulated accelerators, 1 to 4, with one layer each.");
DEFINE_double(cell_ms, 10,
              "Milliseconds of a layer's forward for a micro-batch. Its "
              "backward takes twice as long.");
DEFINE_double(copy_ms, 5, "Milliseconds of a copy to another device.");
DEFINE_int64(rounds, 5, "Number of measurements; the table shows the median.");

namespace gpipe::benchmarks {
namespace {

// An identity that keeps its stream busy, in forward and in backward.
struct Work : torch::autograd::Function<Work> {
  static at::Tensor forward(torch::autograd::AutogradContext*,
                            const at::Tensor& input) {
    at::Tensor output = input.clone();
    simulated::busy(output, FLAGS_cell_ms * 1e-3);
    return output;
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list grads) {
    at::Tensor grad = grads[0].clone();
    simulated::busy(grad, 2 * FLAGS_cell_ms * 1e-3);
    return {grad};
  }
};

struct WorkerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return Work::apply(input); }
};
TORCH_MODULE(Worker);

// Returns the durations of steps with and without streams for copies.
std::vector<std::vector<Duration>> time_steps(
    GPipe& pipeline, int64_t chunks,
    const std::vector<torch::Device>& devices) {
  const at::Tensor input =
      at::ones({chunks, 1}, at::TensorOptions().device(devices.front()))
          .requires_grad_();
  const at::Tensor grad =
      at::ones({chunks, 1}, at::TensorOptions().device(devices.back()));
  const auto step = [&] {
    const Stopwatch watch(devices);
    pipeline->forward(input).backward(grad);
    return watch.elapsed();
  };
  const auto in_turn = [&] {
    const WithoutCopyStreams without;
    return step();
  };
  return interleaved_rounds<Duration>({FLAGS_rounds}, {step, in_turn});
}

std::vector<Table> measure() {
  const Settings settings = parse_settings();
  const int64_t chunks = settings.chunks.value_or(8);
  const auto checkpoint = settings.checkpoint.value_or(Checkpoint::kNever);
  if (FLAGS_partitions <= 0 || FLAGS_partitions > 4 || FLAGS_rounds <= 0 ||
      FLAGS_cell_ms <= 0 || FLAGS_copy_ms < 0) {
    throw std::invalid_argument(
        "--partitions must be 1 to 4, --rounds and --cell_ms above 0, "
        "--copy_ms 0 or above");
  }
  simulated::set_copy_cost({FLAGS_copy_ms * 1e-3, 0});
  torch::nn::Sequential layers;
  std::vector<torch::Device> devices;
  for (int64_t j = 0; j < FLAGS_partitions; ++j) {
    layers->push_back(Worker());
    devices.emplace_back(at::kHPU, static_cast<c10::DeviceIndex>(j));
  }
  GPipe pipeline(layers, GPipeOptions(std::vector<int64_t>(devices.size(), 1))
                             .devices(devices)
                             .chunks(chunks)
                             .checkpoint(checkpoint));

  const auto steps = time_steps(pipeline, chunks, devices);

  // Fill-drain: a stage starts one cell and one copy later than the stage
  // before it, and is then busy without a gap.
  const auto stages = static_cast<double>(FLAGS_partitions - 1);
  const double ideal =
      ((static_cast<double>(chunks) + stages) * 3 * FLAGS_cell_ms +
       2 * stages * FLAGS_copy_ms) *
      1e-3;
  Table table;
  table.title = format(
      "Copies of %g ms between %ld simulated accelerators, %ld "
      "micro-batches, cells of %g ms, checkpoint %s",
      FLAGS_copy_ms, FLAGS_partitions, chunks, FLAGS_cell_ms,
      to_string(checkpoint));
  table.name_column = "copies";
  table.columns = {"seconds", "ideal", "ratio", "goal", "met"};
  const auto add = [&](const std::string& name,
                       const std::vector<Duration>& durations, bool has_goal) {
    const double seconds = median(wall_seconds(durations));
    const double ratio = seconds / ideal;
    table.rows.push_back({name,
                          {Cell(seconds, 4), Cell(ideal, 4), Cell(ratio, 3),
                           has_goal ? Cell(1.1, 1) : Cell(""),
                           has_goal ? (ratio <= 1.1 ? "yes" : "no") : ""},
                          durations,
                          ""});
  };
  add("on streams of their own", steps[0], true);
  add("on the streams that compute", steps[1], false);
  table.notes.push_back(
      "Medians of " + std::to_string(FLAGS_rounds) +
      " rounds. Ideal: (M + P - 1) x 3 cells + 2 (P - 1) copies, the time of a "
      "step in which no device waits for a copy longer than necessary.");
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
      {"copy_overlap",
       "seconds of a step on simulated accelerators, with copies that\n"
       "overlap with computation and with copies that do not.",
       {"", "--cell_ms=4 --copy_ms=2 --chunks=32"}},
      gpipe::benchmarks::measure);
}
