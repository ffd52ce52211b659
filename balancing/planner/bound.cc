#include "balancing/planner/bound.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "gpipe/schedule.h"

namespace gpipe::balancing::planner {
namespace {

// Sums are rounded in different orders, here and in a simulation.
constexpr double kRounding = 1e-12;

std::vector<double> prefix_sums(const std::vector<double>& costs) {
  std::vector<double> sums = {0};
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  return sums;
}

double fastest(const Problem& problem) {
  double speed = 0;
  for (const Rank& rank : problem.ranks) speed = std::max(speed, rank.speed);
  return speed;
}

// Returns the bound for one stage per rank. `work`: per layer. `passing`: per
// layer, how long the first micro-batch and the last gradient need to pass it.
double smallest_maximum(const Problem& problem, double microbatches,
                        const std::vector<double>& work,
                        const std::vector<double>& passing) {
  const double speed = fastest(problem);
  const std::vector<double> works = prefix_sums(work);
  const std::vector<double> passes = prefix_sums(passing);
  // Returns whether ranks that take as many layers as they can in `seconds`
  // take all. No other cut lets a later rank get further: a layer that a rank
  // leaves to the next one costs that one at least as much.
  const auto suffices = [&](double seconds) {
    std::size_t cut = 0;
    for (const Rank& rank : problem.ranks) {
      const double left = seconds - passes[cut] / speed;
      if (left <= 0) continue;
      const double most = works[cut] + left * rank.speed / microbatches;
      cut = std::ranges::upper_bound(works, most) - works.begin() - 1;
    }
    return cut + 1 == works.size();
  };
  double no = 0, yes = microbatches * works.back() / speed;
  constexpr int kSteps = 60;
  for (int k = 0; k < kSteps; ++k) {
    const double middle = no + (yes - no) / 2;
    (suffices(middle) ? yes : no) = middle;
  }
  return no;
}

// Returns a lower bound on the sums of gradients of the slowest rank.
double least_sum_seconds(const Problem& problem, const Blocks& blocks) {
  double latency = std::numeric_limits<double>::infinity(), bandwidth = 0;
  for (const Rank& rank : problem.ranks) {
    latency = std::min(latency, rank.sum.latency);
    bandwidth += 1 / rank.sum.seconds_per_byte;  // infinity if it takes no time
  }
  return latency + blocks.trained(0, blocks.layers()) / bandwidth;
}

}  // namespace

bool splits_backward(const std::string& schedule) {
  const int stages = fixed_stages_per_rank(schedule).value_or(1);
  return internal::has_kind(named_schedule(schedule, 2, 8, stages),
                            ActionKind::kBackwardWeight);
}

std::vector<double> layer_work(const Problem& problem,
                               const Candidate& candidate) {
  const Workload& workload = problem.workloads[candidate.workload];
  const bool splits = splits_backward(candidate.schedule);
  const double recomputed = static_cast<double>(recomputed_microbatches(
                                candidate.recompute, workload.microbatches)) /
                            static_cast<double>(workload.microbatches);
  std::vector<double> work;
  for (const Layer& layer : workload.layers) {
    double backward = layer.backward;
    if (splits) {
      backward =
          std::min(backward, layer.backward_input + layer.backward_weight);
    }
    work.push_back(layer.forward + backward + recomputed * layer.recompute);
  }
  return work;
}

double lower_bound(const Problem& problem, const Candidate& candidate,
                   const Blocks& blocks) {
  const Workload& workload = blocks.workload();
  const bool splits = splits_backward(candidate.schedule);
  const std::vector<double> work = layer_work(problem, candidate);
  const auto microbatches = static_cast<double>(workload.microbatches);
  double all = 0, longest = 0, there_and_back = 0, speeds = 0;
  std::vector<double> passing;
  for (std::size_t k = 0; k < work.size(); ++k) {
    const Layer& layer = workload.layers[k];
    all += work[k];
    longest = std::max(longest, work[k]);
    there_and_back +=
        layer.forward + (splits ? std::min(layer.backward, layer.backward_input)
                                : layer.backward);
    passing.push_back(layer.forward + (splits ? 0 : layer.backward));
  }
  for (const Rank& rank : problem.ranks) speeds += rank.speed;
  const double fastest_speed = fastest(problem);
  double bound = std::max(microbatches * all / speeds,
                          microbatches * longest / fastest_speed);
  if (candidate.stages_per_rank == 1) {
    bound =
        std::max(bound, smallest_maximum(problem, microbatches, work, passing));
  }
  // Each rank runs an F and a backward of each of its stages.
  bound += 2 * microbatches * static_cast<double>(candidate.stages_per_rank) *
           problem.action_seconds;
  bound = std::max(bound, there_and_back / fastest_speed);
  if (problem.workers < static_cast<double>(problem.ranks.size())) {
    bound =
        std::max(bound, microbatches * all / fastest_speed / problem.workers);
  }
  bound += least_sum_seconds(problem, blocks);
  return bound * (1 - kRounding);
}

}  // namespace gpipe::balancing::planner
