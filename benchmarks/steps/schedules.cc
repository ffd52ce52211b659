// Measures whether a training step takes as long as the simulator predicts, for
// every schedule. The stages only sleep, so it needs few cores, and no other
// effect is measured.

#include <gflags/gflags.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/output.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/steps/nap.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/text/lists.h"

DEFINE_int64(microbatches, 16, "Micro-batches per step.");
DEFINE_double(sleep_ms, 10,
              "Average milliseconds of a rank for the forward of a "
              "micro-batch, and for each of the two parts of its backward. "
              "Stages differ by up to a third.");
DEFINE_int64(rounds, 3,
             "Number of measured steps; the table shows the median.");
DEFINE_string(svg, "",
              "File for a picture of the last schedule: the predicted and the "
              "measured timeline.");
DEFINE_string(schedules, "",
              "Names of schedules, separated by commas; see //tools:schedule "
              "--help. '': all.");

namespace gpipe::benchmarks {
namespace {

// A layer that sleeps in forward, for the gradient of its input, and for the
// gradient of its weight. It is a product, so that its backward can be split.
struct SleeperImpl : torch::nn::Module {
  SleeperImpl(double forward, double input, double weight)
      : seconds{forward, input, weight} {}
  at::Tensor forward(const at::Tensor& x) {
    return at::mm(Nap::apply(x, seconds[0], seconds[1]),
                  Nap::apply(matrix, 0.0, seconds[2]));
  }
  const double seconds[3];
  at::Tensor matrix = register_parameter("matrix", at::ones({1, 1}));
};
TORCH_MODULE(Sleeper);

struct Case {
  std::string name;
  Schedule schedule;
};

std::vector<std::string> names() {
  std::vector<std::string> result = split_list(FLAGS_schedules);
  return result.empty() ? training_schedule_names() : result;
}

std::vector<Case> cases(int ranks) {
  std::vector<Case> result;
  for (const std::string& name : names()) {
    const int stages_per_rank = fixed_stages_per_rank(name).value_or(
        name == "looped-bfs" || name == "interleaved-1f1b" ||
                name == "zb-interleaved"
            ? 2
            : 1);
    result.push_back(
        {name, named_schedule(name, ranks, static_cast<int>(FLAGS_microbatches),
                              stages_per_rank)});
  }
  if (!FLAGS_schedules.empty()) return result;
  const auto all = [](int) { return true; };
  for (const char* name : {"fill-drain", "1f1b"}) {
    const Schedule plain =
        named_schedule(name, ranks, static_cast<int>(FLAGS_microbatches), 1);
    result.push_back(
        {name + std::string(", recomputed"), with_recompute(plain, all)});
    result.push_back(
        {std::string(name) + ", recomputed late",
         with_recompute(plain, all, RecomputePlacement::kWithBackward)});
  }
  return result;
}

// Returns random costs. The expected work of a rank is the same for any number
// of stages per rank.
Costs random_costs(int stages, int stages_per_rank, std::mt19937& random) {
  std::uniform_real_distribution<double> around(2.0 / 3, 4.0 / 3);
  Costs costs;
  for (int s = 0; s < stages; ++s) {
    const auto seconds = [&] {
      return 1e-3 * FLAGS_sleep_ms * around(random) / stages_per_rank;
    };
    costs.forward.push_back(seconds());
    costs.backward_input.push_back(seconds());
    costs.backward_weight.push_back(seconds());
    costs.backward.push_back(costs.backward_input[s] +
                             costs.backward_weight[s]);
  }
  costs.recompute = costs.forward;
  return costs;
}

Timeline median_step(GPipe& pipeline, const Schedule& schedule) {
  const at::Tensor input = at::ones({FLAGS_microbatches, 1}).requires_grad_();
  const at::Tensor target = at::zeros({FLAGS_microbatches, 1});
  const auto step = [&] {
    StepResult result = pipeline->train_step(
        input, target,
        [](const at::Tensor& output, const at::Tensor&) {
          return output.mean();
        },
        schedule, TrainOptions().timeline(true));
    return std::move(*result.timeline);
  };
  auto timelines = interleaved_rounds<Timeline>({FLAGS_rounds}, {step}).front();
  std::sort(timelines.begin(), timelines.end(),
            [](const Timeline& a, const Timeline& b) {
              return a.makespan < b.makespan;
            });
  return timelines[timelines.size() / 2];
}

Row run(const Case& test, int ranks, std::mt19937& random, double& worst) {
  const int stages = num_stages(test.schedule);
  const int stages_per_rank = stages / ranks;
  const Costs costs = random_costs(stages, stages_per_rank, random);
  const Timeline predicted = simulate(test.schedule, costs);
  torch::nn::Sequential layers;
  for (int s = 0; s < stages; ++s) {
    layers->push_back(Sleeper(costs.forward[s], costs.backward_input[s],
                              costs.backward_weight[s]));
  }
  GPipe pipeline(layers,
                 GPipeOptions(std::vector<int64_t>(stages, 1))
                     .stages_per_rank(stages_per_rank)
                     .devices(std::vector<torch::Device>(ranks, at::kCPU))
                     .checkpoint(Checkpoint::kNever)
                     .threads_per_partition(1));
  const Timeline measured = median_step(pipeline, test.schedule);
  if (!FLAGS_svg.empty()) {
    std::ofstream(FLAGS_svg)
        << to_svg({{"predicted", predicted}, {"measured", measured}});
  }
  const double error = measured.makespan / predicted.makespan - 1;
  worst = std::max(worst, std::abs(error));
  return {test.name,
          {Cell(int64_t{ranks}), Cell(int64_t{stages_per_rank}),
           Cell(1e3 * predicted.makespan, 1), Cell(1e3 * measured.makespan, 1),
           Cell(100 * error, 2), Cell(100 * predicted.bubble_fraction, 1),
           Cell(100 * measured.bubble_fraction, 1)},
          {},
          ""};
}

std::vector<Table> measure() {
  if (FLAGS_microbatches <= 0 || FLAGS_rounds <= 0 || FLAGS_sleep_ms <= 0) {
    throw std::invalid_argument(
        "--microbatches, --rounds and --sleep_ms must be above 0");
  }
  std::mt19937 random(0);
  Table table;
  table.title = "Training steps of stages that sleep, " +
                std::to_string(FLAGS_microbatches) + " micro-batches";
  table.name_column = "schedule";
  table.columns = {
      "ranks",        "stages per rank",    "predicted ms",     "measured ms",
      "difference %", "bubble predicted %", "bubble measured %"};
  double worst = 0;
  for (const int ranks : {2, 4, 8}) {
    for (const Case& test : cases(ranks)) {
      table.rows.push_back(run(test, ranks, random, worst));
    }
  }
  table.notes.push_back("Medians of " + std::to_string(FLAGS_rounds) +
                        " steps; the largest difference is " +
                        Cell(100 * worst, 2).text() + " % (goal: 5 %).");
  return {table};
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_table_program(
      argc, argv,
      {"schedules",
       "milliseconds of steps with layers that sleep, for every schedule,\n"
       "beside those that gpipe::simulate() predicts.",
       {"", "--schedules=1f1b,zb-h1 --svg=/folder/zb.svg",
        "--microbatches=32 --sleep_ms=20"}},
      gpipe::benchmarks::measure);
}
