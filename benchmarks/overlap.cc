// Measures whether partitions work at the same time. The layers only sleep, so
// it needs neither many cores nor accelerators, and no other effect is
// measured.

#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

// Must follow LibTorch's headers, which define the same macros if glog has not.
#include <gflags/gflags.h>

#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/throughput.h"
#include "gpipe/gpipe.h"

DEFINE_int64(partitions, 4, "Number of CPU partitions, with one layer each.");
DEFINE_int64(sleep_ms, 20,
             "Milliseconds of a layer for a micro-batch, in forward and in "
             "backward.");
DEFINE_int64(rounds, 5, "Number of measurements; the table shows the median.");

namespace gpipe::benchmarks {
namespace {

void nap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(FLAGS_sleep_ms));
}

// An identity that sleeps in forward and in backward.
struct Nap : torch::autograd::Function<Nap> {
  static at::Tensor forward(torch::autograd::AutogradContext*,
                            const at::Tensor& input) {
    nap();
    return input.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list grads) {
    nap();
    return {grads[0]};
  }
};

struct SleeperImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return Nap::apply(input); }
};
TORCH_MODULE(Sleeper);

Row make_row(const std::string& name, std::vector<Duration> durations,
             double ideal, double tolerance) {
  std::vector<double> seconds;
  for (const auto& duration : durations) {
    seconds.push_back(duration.wall_seconds);
  }
  const double measured = median(seconds);
  const double goal = ideal * tolerance;
  return {name,
          {Cell(measured, 4), Cell(ideal, 4), Cell(goal, 4),
           measured <= goal ? "yes" : "no"},
          std::move(durations),
          ""};
}

int measure() {
  check_format();
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
  std::vector<double> naps;
  std::vector<Duration> forward;
  std::vector<Duration> both;
  for (int64_t round = -1; round < FLAGS_rounds; ++round) {
    const Stopwatch nap_watch(devices);
    nap();
    naps.push_back(nap_watch.elapsed().wall_seconds);
    const Stopwatch watch(devices);
    const at::Tensor output = pipeline->forward(input);
    const Duration after_forward = watch.elapsed();
    output.sum().backward();
    if (round < 0) continue;  // the first round starts threads
    forward.push_back(after_forward);
    both.push_back(watch.elapsed());
  }

  // Each pass takes chunks + partitions - 1 slots: until the last micro-batch
  // has left the last partition.
  const double ideal = static_cast<double>(chunks + FLAGS_partitions - 1) *
                       static_cast<double>(FLAGS_sleep_ms) * 1e-3;
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
  char text[160];
  std::snprintf(text, sizeof(text),
                "Medians of %lld rounds. A sleep of %lld ms by itself took "
                "%.2f ms.",
                static_cast<long long>(FLAGS_rounds),
                static_cast<long long>(FLAGS_sleep_ms), median(naps) * 1e3);
  table.notes.emplace_back(text);
  if (checkpoint != Checkpoint::kNever) {
    table.notes.push_back("The ideal does not include recomputing.");
  }
  print_table(table, "overlap", describe_environment());
  return kOk;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "overlap",
      "seconds of a step with layers that sleep, beside the seconds of\n"
      "perfect overlap.",
      {"", "--partitions=8 --chunks=32 --sleep_ms=5"}};
  return gpipe::benchmarks::run_program(argc, argv, program,
                                        gpipe::benchmarks::measure);
}
