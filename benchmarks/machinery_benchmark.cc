// Measures the cost of the pipeline itself: microseconds per cell (forward and
// backward) beyond the cost of the layers in a plain model that accumulates the
// same micro-batches.
//
//   ./bazelw build //benchmarks:machinery_benchmark
//   taskset -c 0 bazel-bin/benchmarks/machinery_benchmark
//
// Run it on one core, so that parallel work does not hide the cost.
//
// The model has 8 linear layers of 64 x 64 on 64 rows. In this setting
// torchgpipe takes 164 us per cell without checkpointing and 300 to 700 us with
// it, second forward included. Plain and pipelined steps alternate, so both see
// the same state of the machine. The counter us_per_cell is (pipelined - plain
// - extra forwards of checkpointed cells) / cells, from the medians.
#include <benchmark/benchmark.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <vector>

#include "benchmarks/harness/timing.h"
#include "gpipe/gpipe.h"

namespace {

using gpipe::benchmarks::median;
using gpipe::benchmarks::time_of;
using torch::Tensor;

constexpr int64_t kLayers = 8;
constexpr int64_t kWidth = 64;
constexpr int64_t kRows = 64;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int64_t k = 0; k < kLayers; ++k) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  return model;
}

// Arguments: partitions, micro-batches, checkpoint mode.
void BM_Step(benchmark::State& state) {
  torch::set_num_threads(1);
  const int64_t partitions = state.range(0), chunks = state.range(1);
  const auto mode = static_cast<gpipe::Checkpoint>(state.range(2));
  auto model = make_model();
  gpipe::GPipe pipeline(
      model, gpipe::GPipeOptions(
                 std::vector<int64_t>(partitions, kLayers / partitions))
                 .chunks(chunks)
                 .checkpoint(mode)
                 .threads_per_partition(1)
                 .devices(std::vector<torch::Device>(
                     partitions, torch::Device(torch::kCPU))));
  const Tensor input = torch::randn({kRows, kWidth});
  const auto pieces = input.chunk(chunks);
  const Tensor grad = torch::ones({kRows, kWidth});
  const auto grad_pieces = grad.chunk(chunks);

  std::vector<double> plain, forwards, pipelined;
  for (auto _ : state) {
    plain.push_back(time_of([&] {
                      for (int64_t i = 0; i < chunks; ++i) {
                        model->forward(pieces[i]).backward(grad_pieces[i]);
                      }
                    }).wall_seconds);
    model->zero_grad();
    forwards.push_back(time_of([&] {
                         for (int64_t i = 0; i < chunks; ++i) {
                           benchmark::DoNotOptimize(model->forward(pieces[i]));
                         }
                       }).wall_seconds);
    pipelined.push_back(
        time_of([&] { pipeline->forward(input).backward(grad); }).wall_seconds);
    state.SetIterationTime(pipelined.back());
    pipeline->zero_grad();
  }
  const double checkpointed =
      static_cast<double>(gpipe::checkpointed_microbatches(mode, chunks));
  const double layers =
      median(plain) + median(forwards) * checkpointed / chunks;
  state.counters["plain_us"] = median(plain) * 1e6;
  state.counters["step_us"] = median(pipelined) * 1e6;
  state.counters["us_per_cell"] =
      (median(pipelined) - layers) * 1e6 / (partitions * chunks);
}

BENCHMARK(BM_Step)
    ->ArgNames({"partitions", "chunks", "mode"})
    ->ArgsProduct({{1, 2, 4, 8},
                   {1, 4, 16},
                   {static_cast<int>(gpipe::Checkpoint::kNever),
                    static_cast<int>(gpipe::Checkpoint::kAlways)}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(400);

}  // namespace

BENCHMARK_MAIN();
