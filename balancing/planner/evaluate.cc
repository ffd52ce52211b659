#include "balancing/planner/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "gpipe/schedule.h"

namespace gpipe::balancing::planner {
namespace {

using gpipe::internal::Durations;
using gpipe::internal::Engine;
using gpipe::internal::kActionCosts;

// Sums are rounded in different orders, here and in a simulation.
constexpr double kRounding = 1e-12;

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
  double latency = kInfinity, bandwidth = 0;
  for (const Rank& rank : problem.ranks) {
    latency = std::min(latency, rank.sum.latency);
    bandwidth += 1 / rank.sum.seconds_per_byte;  // infinity if it takes no time
  }
  return latency + blocks.trained(0, blocks.layers()) / bandwidth;
}

}  // namespace

double factor_for(double bytes, double limit) {
  if (bytes <= 0 || std::isinf(limit)) return 0;
  if (limit == 0) return kInfinity;
  double factor = bytes / limit;
  while (factor * limit < bytes) factor = std::nextafter(factor, kInfinity);
  for (;;) {
    const double less = std::nextafter(factor, 0.0);
    if (less * limit < bytes) return factor;
    factor = less;
  }
}

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

Evaluator::Evaluator(const Problem& problem, const Candidate& candidate,
                     const Blocks& blocks)
    : problem_(problem),
      candidate_(candidate),
      blocks_(blocks),
      base_(base_schedule(problem, candidate)),
      rank_of_stage_(gpipe::rank_of_stage(base_)),
      stages_of_(problem.ranks.size()),
      splits_(gpipe::internal::has_kind(base_, ActionKind::kBackwardWeight)),
      microbatches_(static_cast<double>(blocks.workload().microbatches)),
      recomputed_(static_cast<double>(recomputed_microbatches(
          candidate.recompute, blocks.workload().microbatches))) {
  for (std::size_t s = 0; s < rank_of_stage_.size(); ++s) {
    stages_of_[rank_of_stage_[s]].push_back(static_cast<int>(s));
  }
  for (const auto& actions : base_.ranks) actions_ += actions.size();
}

StageTable Evaluator::table_of(const Balance& balance) const {
  return stage_table(problem_, blocks_, rank_of_stage_, balance);
}

// ---- Recomputes and memory

Schedule Evaluator::with_recomputes(const Schedule& schedule,
                                    const Recomputed& recomputed) const {
  const auto count = static_cast<int>(recomputed_);
  return with_recompute(schedule, [&](int stage, int microbatch) {
    return microbatch < count || recomputed[stage];
  });
}

Evaluator::Variant& Evaluator::variant(const Recomputed& recomputed) {
  const auto found = variants_.find(recomputed);
  if (found != variants_.end()) return found->second;
  Variant& made = variants_[recomputed];
  made.schedule = with_recomputes(base_, recomputed);
  if (candidate_.offload) {
    made.schedule =
        with_offload(made.schedule, distant_cells(base_, kOffloadDistance));
  }
  // The durations of each cut replace those of these costs.
  Costs costs;
  costs.forward.assign(rank_of_stage_.size(), 1);
  costs.backward = costs.backward_input = costs.backward_weight =
      costs.recompute = costs.forward;
  made.engine = std::make_unique<Engine>(made.schedule, costs);
  return made;
}

const std::vector<Held>& Evaluator::held(int rank,
                                         const Recomputed& recomputed) {
  Recomputed own(recomputed.size());
  for (const int s : stages_of(rank)) own[s] = recomputed[s];
  const auto [found, is_new] = held_.try_emplace({rank, own});
  if (is_new) {
    Schedule one;
    one.ranks.push_back(base_.ranks[rank]);
    found->second =
        most_held(with_recomputes(one, own).ranks[0], stages_of(rank));
  }
  return found->second;
}

// Returns the stages of a rank, those first that save most.
std::vector<int> Evaluator::by_saved(int rank, const StageTable& table) const {
  std::vector<int> order = stages_of(rank);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](int stage) { return table.saved[stage]; });
  return order;
}

// Sets which stages are recomputed with kWhereNeeded: on each rank as few as
// possible, those first that save most. Returns false if a rank's memory is too
// small even if all are recomputed.
bool Evaluator::choose_recomputed(const StageTable& table,
                                  Recomputed* recomputed) {
  recomputed->assign(table.size(), 0);
  for (std::size_t r = 0; r < stages_of_.size(); ++r) {
    const int rank = static_cast<int>(r);
    const std::vector<int> order = by_saved(rank, table);
    auto next = order.begin();
    while (peak_bytes(held(rank, *recomputed), stages_of_[r], table) >
           problem_.ranks[r].memory_bytes) {
      if (next == order.end()) return false;
      (*recomputed)[*next++] = 1;
    }
  }
  return true;
}

std::vector<double> Evaluator::peaks(const StageTable& table,
                                     const Recomputed& recomputed) {
  std::vector<double> result;
  for (std::size_t r = 0; r < stages_of_.size(); ++r) {
    result.push_back(peak_bytes(held(static_cast<int>(r), recomputed),
                                stages_of_[r], table));
  }
  return result;
}

// Returns the peaks of a step with offload, which depend on times.
std::vector<double> Evaluator::peaks(Timeline timeline,
                                     const StageTable& table) const {
  return with_memory(std::move(timeline), costs_of(table)).peak_bytes;
}

bool Evaluator::fits(const std::vector<double>& peaks) const {
  for (std::size_t r = 0; r < peaks.size(); ++r) {
    if (!(peaks[r] <= problem_.ranks[r].memory_bytes)) return false;
  }
  return true;
}

const std::vector<Held>& Evaluator::held(int rank, bool where_needed) {
  return held(rank, Recomputed(rank_of_stage_.size(), where_needed ? 1 : 0));
}

std::vector<double> Evaluator::least_peaks(const Balance& balance) {
  const StageTable table = table_of(balance);
  std::vector<double> least = peaks(table, Recomputed(table.size()));
  if (candidate_.recompute != kWhereNeeded) return least;
  for (std::size_t r = 0; r < least.size(); ++r) {
    const int rank = static_cast<int>(r);
    Recomputed recomputed(table.size());
    for (const int stage : by_saved(rank, table)) {
      recomputed[stage] = 1;
      least[r] = std::min(
          least[r], peak_bytes(held(rank, recomputed), stages_of_[r], table));
    }
  }
  return least;
}

double Evaluator::fullness(const Balance& balance) {
  std::vector<double> bytes;
  if (candidate_.offload) {
    const StageTable table = table_of(balance);
    const Variant& variant = this->variant(Recomputed(table.size()));
    ++simulations_;
    bytes = peaks(variant.engine->timeline(durations(variant, table)), table);
  } else {
    bytes = least_peaks(balance);
  }
  double most = 0;
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    most = std::max(most, factor_for(bytes[r], problem_.ranks[r].memory_bytes));
  }
  return most;
}

double Evaluator::largest_peak(const Balance& balance) {
  const std::vector<double> bytes = least_peaks(balance);
  return *std::ranges::max_element(bytes);
}

// ---- Time

// A rank waits for the first micro-batch and does all of its work. Unless there
// are weight backwards, which may come last, its last gradient then has to
// reach the first stage. One micro-batch has to pass all stages both ways. Sums
// of gradients are not included.
double Evaluator::lower_bound(const StageTable& table) const {
  const Costs& seconds = table.seconds;
  double head = 0, tail = 0, all_work = 0, bound = 0;
  std::vector<char> seen(stages_of_.size());
  for (std::size_t s = 0; s < table.size(); ++s) {
    head += table.wire[s] + table.delay[s];
    tail += table.wire_back[s] + table.delay_back[s];
    const auto r = static_cast<std::size_t>(rank_of_stage_[s]);
    if (!std::exchange(seen[r], 1)) {
      double work = 0;
      for (const int own : stages_of_[r]) {
        double backward = seconds.backward[own];
        if (splits_) {
          backward = std::min(backward, seconds.backward_input[own] +
                                            seconds.backward_weight[own]);
        }
        work += microbatches_ * (seconds.forward[own] + backward) +
                recomputed_ * seconds.recompute[own];
      }
      all_work += work;
      bound = std::max(bound, head + work + (splits_ ? 0 : tail));
    }
    head += seconds.forward[s];
    tail += splits_ ? std::min(seconds.backward[s], seconds.backward_input[s])
                    : seconds.backward[s];
  }
  bound = std::max(bound, head + tail);
  return shares_cores() ? std::max(bound, all_work / problem_.workers) : bound;
}

double Evaluator::sum_seconds(const StageTable& table) const {
  double longest = 0;
  for (std::size_t r = 0; r < stages_of_.size(); ++r) {
    const Link& sum = problem_.ranks[r].sum;
    double bytes = 0;
    for (const int s : stages_of_[r]) bytes += table.trained[s];
    longest = std::max(longest, sum.latency + bytes * sum.seconds_per_byte);
  }
  return longest;
}

bool Evaluator::shares_cores() const {
  return problem_.workers < static_cast<double>(problem_.ranks.size());
}

Durations Evaluator::durations(const Variant& variant,
                               const StageTable& table) const {
  Durations result = variant.engine->durations();
  for (std::size_t s = 0; s < table.size(); ++s) {
    double* const seconds = &result.seconds[s * Durations::kKinds];
    for (std::size_t k = 0; k < kActionCosts.size(); ++k) {
      seconds[k] = (table.seconds.*kActionCosts[k].list)[s];
    }
    const auto rank = static_cast<std::size_t>(rank_of_stage_[s]);
    const double copy = table.saved[s] / problem_.ranks[rank].host_bandwidth;
    seconds[static_cast<std::size_t>(ActionKind::kOffload)] = copy;
    seconds[static_cast<std::size_t>(ActionKind::kReload)] = copy;
    if (s == 0) continue;
    result.backward[s].wire = table.wire_back[s];
    result.backward[s].delay = table.delay_back[s];
    result.forward[s - 1].wire = table.wire[s];
    result.forward[s - 1].delay = table.delay[s];
  }
  return result;
}

double Evaluator::seconds(const Balance& balance, double enough) {
  const StageTable table = table_of(balance);
  const double sum_seconds = this->sum_seconds(table);
  const double bound = lower_bound(table) + sum_seconds;
  if (bound >= enough) return bound;
  Recomputed recomputed(table.size());
  if (candidate_.recompute == kWhereNeeded) {
    if (!choose_recomputed(table, &recomputed)) return kInfinity;
  } else if (!candidate_.offload && has_limits(problem_) &&
             !fits(peaks(table, recomputed))) {
    return kInfinity;
  }
  const Variant& variant = this->variant(recomputed);
  ++simulations_;
  double seconds = 0;
  if (candidate_.offload) {
    Timeline timeline = variant.engine->timeline(durations(variant, table));
    seconds = timeline.makespan;
    if (!fits(peaks(std::move(timeline), table))) return kInfinity;
  } else {
    seconds = variant.engine->makespan(durations(variant, table));
  }
  if (shares_cores()) {
    // The combined effect of shared cores and copies is not known, so the
    // slower of both predictions is used.
    seconds = std::max(
        seconds,
        simulate_on_cores(variant.schedule, table.seconds, problem_.workers)
            .makespan);
  }
  return seconds + sum_seconds;
}

Prediction Evaluator::predict(const Balance& balance) {
  Prediction result;
  result.stages = table_of(balance);
  Recomputed recomputed(result.stages.size());
  if (candidate_.recompute == kWhereNeeded) {
    choose_recomputed(result.stages, &recomputed);
  }
  const Variant& variant = this->variant(recomputed);
  ++simulations_;
  result.schedule = variant.schedule;
  result.sum_seconds = sum_seconds(result.stages);
  result.timeline = variant.engine->timeline(durations(variant, result.stages));
  result.peak_bytes = candidate_.offload ? peaks(result.timeline, result.stages)
                                         : peaks(result.stages, recomputed);
  if (shares_cores()) {
    Timeline shared = simulate_on_cores(variant.schedule, result.stages.seconds,
                                        problem_.workers);
    if (shared.makespan >= result.timeline.makespan) {
      result.timeline = std::move(shared);
    }
  }
  return result;
}

}  // namespace gpipe::balancing::planner
