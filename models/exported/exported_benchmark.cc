// Measures exported programs: finding their cuts, loading a file, and what the
// interpreter adds to the operators.
//
//   ./bazelw run //models/exported:exported_benchmark -- --in=/a/model.pt2
//
// - cuts/N: the cuts of a residual network of N nodes, in milliseconds.
// - load: the file, with its weights, in milliseconds.
// - forward, graph, step: the whole model in one layer, with the batch of
//   --rows rows: without a graph, with a graph that is dropped, and with a
//   backward. The counter per_node is the time divided by the number of nodes.
// - direct/forward, direct/graph, direct/step: at::add of one number, 1,000
//   times, in the same way. A file of 1,000 such nodes shows what the
//   interpreter adds.
//
// Inputs are ones of the sizes of the file; other sizes that vary are --rows.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "models/exported/analysis.h"
#include "models/exported/archive.h"
#include "models/exported/comparison.h"
#include "models/exported/exported.h"
#include "models/exported/plan.h"
#include "models/exported/program.h"
#include "models/exported/program_reader.h"
#include "models/testing/draft.h"

namespace gpipe::exported {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kNodes = 1000;

// Adds the counter "per_node": seconds per node of an iteration.
void count_nodes(benchmark::State& state, double nodes) {
  state.counters["per_node"] =
      benchmark::Counter(nodes, benchmark::Counter::kIsIterationInvariantRate |
                                    benchmark::Counter::kInvert);
}

// Two nodes per block: one that reads the sum, and the sum with its result.
void cuts(benchmark::State& state) {
  testing::Draft draft;
  ValueId sum = draft.input();
  for (int64_t k = 0; k < state.range(0); k += 2) {
    sum = draft.node({sum, draft.node({sum})});
  }
  const Program& program = draft.finish(sum);
  for (auto _ : state) {
    benchmark::DoNotOptimize(plan_layers(program, 4));
  }
  state.SetComplexityN(state.range(0));
}
BENCHMARK(cuts)->Arg(1000)->Arg(10000)->Arg(100000)->Complexity()->Unit(
    benchmark::kMillisecond);

enum class Work { kForward, kGraph, kStep };

void direct(benchmark::State& state, Work work) {
  const c10::AutoGradMode grad(work != Work::kForward);
  for (auto _ : state) {
    at::Tensor x = at::ones({1}).requires_grad_(work != Work::kForward);
    for (int64_t k = 0; k < kNodes; ++k) x = at::add(x, 1);
    if (work == Work::kStep) x.backward();
  }
  count_nodes(state, static_cast<double>(kNodes));
}
BENCHMARK_CAPTURE(direct, forward, Work::kForward)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(direct, graph, Work::kGraph)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(direct, step, Work::kStep)->Unit(benchmark::kMillisecond);

void load(benchmark::State& state, const std::string& path) {
  for (auto _ : state) benchmark::DoNotOptimize(load_exported(path));
}

Tensors inputs_of(const ExportedModel& model, int64_t rows, bool with_grad) {
  Tensors inputs;
  for (const ExportedTensor& each : model.inputs) {
    std::vector<int64_t> sizes;
    for (const auto& size : each.sizes) sizes.push_back(size.value_or(rows));
    at::Tensor input = at::ones(sizes, each.dtype.value_or(at::kFloat));
    if (with_grad && input.is_floating_point()) input.requires_grad_();
    inputs.push_back(std::move(input));
  }
  return inputs;
}

void run(benchmark::State& state, const std::string& path, int64_t rows,
         Work work) {
  const bool with_graph = work != Work::kForward;
  ExportedModel model = load_exported(path, ExportedOptions().max_crossing(0));
  Archive archive(path);
  Program program = read_program(archive, {});
  analyze(program, /*keep_random=*/true);
  const Tensors inputs = inputs_of(model, rows, with_graph);
  const c10::AutoGradMode grad(with_graph);
  for (auto _ : state) {
    const at::Tensor output =
        call(model.layers, inputs, model.outputs.size())[0];
    if (work == Work::kStep) output.sum().backward();
  }
  count_nodes(state, static_cast<double>(program.nodes.size()));
}

void add_benchmarks_of(const std::string& path, int64_t rows) {
  benchmark::RegisterBenchmark("load", load, path)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("forward", run, path, rows, Work::kForward)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("graph", run, path, rows, Work::kGraph)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("step", run, path, rows, Work::kStep)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace gpipe::exported

int main(int argc, char** argv) {
  at::set_num_threads(1);
  std::string path;
  int64_t rows = 4;
  // Google Benchmark refuses arguments that it does not know.
  std::vector<char*> rest;
  for (int k = 0; k < argc; ++k) {
    const std::string argument = argv[k];
    if (argument.starts_with("--in=")) {
      path = argument.substr(5);
    } else if (argument.starts_with("--rows=")) {
      rows = std::stoll(argument.substr(7));
    } else {
      rest.push_back(argv[k]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;
  if (!path.empty()) gpipe::exported::add_benchmarks_of(path, rows);
  try {
    benchmark::RunSpecifiedBenchmarks();
  } catch (const c10::Error& error) {
    std::cerr << "exported_benchmark: " << error.what_without_backtrace()
              << "\n";
    return 1;
  }
  return 0;
}
