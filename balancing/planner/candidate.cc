#include "balancing/planner/candidate.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

namespace gpipe::balancing::planner {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Returns the schedule that `name` becomes with one stage per rank, or "".
std::string twin_with_one_stage(const std::string& name) {
  if (name == "interleaved-1f1b") return "eager-1f1b";
  if (name == "looped-bfs") return "fill-drain";
  if (name == "zb-interleaved") return "zb-h1";
  return "";
}

// Returns the numbers of stages per rank to try with a schedule, ascending.
std::vector<int64_t> stages_to_try(const Problem& problem,
                                   const std::string& name) {
  const std::optional<int> fixed = fixed_stages_per_rank(name);
  const auto layers = std::ssize(problem.workloads[0].layers);
  const auto ranks = std::ssize(problem.ranks);
  std::set<int64_t> result;
  for (const int64_t stages : problem.stages_per_rank) {
    const bool fits = stages <= layers / ranks;
    const bool is_twin =
        stages == 1 && contains(problem.schedules, twin_with_one_stage(name));
    if (fits && !is_twin && fixed.value_or(stages) == stages) {
      result.insert(stages);
    }
  }
  return {result.begin(), result.end()};
}

std::vector<Recompute> recomputes_to_try(const Problem& problem) {
  std::vector<Recompute> result;
  const bool is_limited = has_limits(problem);
  for (const Recompute recompute : problem.recomputes) {
    if (recompute == kWhereNeeded && !is_limited) continue;
    if (std::ranges::find(result, recompute) == result.end()) {
      result.push_back(recompute);
    }
  }
  return result;
}

// Returns the numbers of the workloads, the one with fewest micro-batches
// first.
std::vector<std::size_t> workloads_to_try(const Problem& problem) {
  std::vector<std::size_t> result(problem.workloads.size());
  std::iota(result.begin(), result.end(), std::size_t{0});
  std::ranges::stable_sort(result, {}, [&](std::size_t k) {
    return problem.workloads[k].microbatches;
  });
  return result;
}

}  // namespace

std::vector<Candidate> candidates(const Problem& problem) {
  std::vector<Candidate> result;
  const std::vector<std::size_t> workloads = workloads_to_try(problem);
  const std::vector<Recompute> recomputes = recomputes_to_try(problem);
  for (const bool offload : {false, true}) {
    if (offload && !problem.offload) continue;
    for (const std::string& name : schedule_names()) {
      if (!contains(problem.schedules, name)) continue;
      for (const int64_t stages : stages_to_try(problem, name)) {
        for (const std::size_t workload : workloads) {
          for (const Recompute recompute : recomputes) {
            if (offload && recompute != Checkpoint::kNever) continue;
            result.push_back({name, stages, workload, recompute, offload});
          }
        }
      }
    }
  }
  return result;
}

Schedule base_schedule(const Problem& problem, const Candidate& candidate) {
  const Workload& workload = problem.workloads[candidate.workload];
  return named_schedule(candidate.schedule,
                        static_cast<int>(problem.ranks.size()),
                        static_cast<int>(workload.microbatches),
                        static_cast<int>(candidate.stages_per_rank));
}

int64_t recomputed_microbatches(Recompute recompute, int64_t microbatches) {
  return recompute ? checkpointed_microbatches(*recompute, microbatches) : 0;
}

}  // namespace gpipe::balancing::planner
