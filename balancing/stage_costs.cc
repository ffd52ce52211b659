#include "balancing/stage_costs.h"

#include <iterator>

#include "balancing/planner/stages.h"
#include "balancing/planner/workload.h"
#include "balancing/solver/sums.h"
#include "gpipe/base/text.h"

namespace gpipe::balancing {

Costs stage_costs(const Profile& profile, int64_t rows, int64_t chunks,
                  const std::vector<int64_t>& balance, double speed,
                  double param_scale) {
  detail::check_balance(balance, std::ssize(profile.times));
  if (profile.rows < 1 || rows < 1 || chunks < 1 || !(speed > 0)) {
    gpipe::internal::refuse("a profile of ", profile.rows,
                            " rows cannot be scaled to ", rows, " rows in ",
                            chunks, " chunks on a device of speed ", speed,
                            ": all four must be above 0");
  }
  planner::Problem problem;
  problem.workloads = {
      detail::workload_of(detail::sample_of(profile, rows, chunks))};
  problem.ranks.resize(1);
  problem.ranks[0].speed = speed;
  problem.param_scale = param_scale;
  planner::check(problem);
  const std::vector<int> rank_of_stage(balance.size());
  return planner::costs_of(planner::stage_table(
      problem, planner::Blocks(problem, problem.workloads[0]), rank_of_stage,
      balance));
}

}  // namespace gpipe::balancing
