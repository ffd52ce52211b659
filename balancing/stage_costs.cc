#include "balancing/stage_costs.h"

#include <cmath>
#include <cstddef>
#include <iterator>

#include "balancing/partition.h"
#include "balancing/planner/problem.h"
#include "balancing/planner/stages.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe::balancing {
namespace {

using gpipe::internal::refuse;

// Throws std::invalid_argument if a member of `profile` from which the costs of
// layers are sums is out of its range. The sums may hide this.
void check_terms(const Profile& profile) {
  if (profile.times.size() != profile.memory.layers.size()) {
    refuse("the profile has the times of ", profile.times.size(),
           " layers, but the memory of ", profile.memory.layers.size(),
           ": give both for each layer");
  }
  for (std::size_t k = 0; k < profile.times.size(); ++k) {
    const double accumulate = profile.times[k].accumulate;
    if (!std::isfinite(accumulate) || accumulate < 0) {
      refuse("the accumulate of layer ", k, " is ", accumulate,
             ": it must be finite and not negative");
    }
    const LayerMemory& memory = profile.memory.layers[k];
    if (memory.trained_bytes > memory.parameter_bytes) {
      refuse("the trained_bytes of layer ", k, " are ", memory.trained_bytes,
             ": they must be at most its parameter_bytes, ",
             memory.parameter_bytes);
    }
    if (memory.buffer_bytes < 0) {
      refuse("the buffer_bytes of layer ", k, " are ", memory.buffer_bytes,
             ": they must not be negative");
    }
  }
}

// Returns the costs of the layers in one of `microbatches` micro-batches.
// `mean`, `largest`: the rows of a micro-batch divided by those of the profile;
// on average, for times, and of the largest one, for bytes.
planner::Workload scaled(const Profile& profile, int64_t microbatches,
                         double mean, double largest) {
  planner::Workload workload;
  workload.microbatches = microbatches;
  const auto count = static_cast<double>(microbatches);
  for (std::size_t k = 0; k < profile.times.size(); ++k) {
    const LayerTime& time = profile.times[k];
    const LayerMemory& memory = profile.memory.layers[k];
    const double sums = time.accumulate * (count - 1) / count;
    const double backward = mean * time.backward;
    const bool split = time.backward_input != 0 || time.backward_weight != 0;
    planner::Layer& layer = workload.layers.emplace_back();
    layer.forward = layer.recompute = mean * time.forward;
    layer.backward = backward + sums;
    layer.backward_input = split ? mean * time.backward_input : backward / 2;
    layer.backward_weight =
        (split ? mean * time.backward_weight : backward / 2) + sums;
    layer.output_bytes = largest * static_cast<double>(memory.output_bytes);
    layer.trained_bytes = static_cast<double>(memory.trained_bytes);
    layer.fixed_bytes = static_cast<double>(memory.fixed_bytes());
  }
  const auto add = [&](const std::vector<SavedTensor>& from,
                       std::vector<planner::SavedBytes>& to) {
    for (const SavedTensor& saved : from) {
      if (saved.savers.empty()) continue;
      to.push_back({largest * static_cast<double>(saved.bytes), saved.savers});
    }
  };
  add(profile.memory.saved, workload.saved);
  add(profile.memory.saved_for_weights, workload.saved_for_weights);
  for (const SkipMemory& skip : profile.memory.skips) {
    workload.skips.push_back({skip.stashed_by, skip.popped_by,
                              largest * static_cast<double>(skip.bytes)});
  }
  return workload;
}

}  // namespace

planner::Workload detail::workload_of(const Profile& profile, int64_t rows,
                                      int64_t chunks) {
  check_terms(profile);
  // So that errors have the numbers of the profile.
  planner::check(scaled(profile, 1, 1, 1));
  const int64_t count = num_microbatches(rows, chunks);
  const auto profiled = static_cast<double>(profile.rows);
  // The last micro-batch may have fewer rows.
  return scaled(
      profile, count,
      static_cast<double>(rows) / static_cast<double>(count) / profiled,
      static_cast<double>(rows_per_microbatch(rows, chunks)) / profiled);
}

Costs stage_costs(const Profile& profile, int64_t rows, int64_t chunks,
                  const std::vector<int64_t>& balance, double speed,
                  double param_scale) {
  detail::check_balance(balance, std::ssize(profile.times));
  if (balance.empty()) {
    refuse(
        "the balance is empty: give the layers of each of at "
        "least 1 stage");
  }
  if (profile.rows < 1 || rows < 1 || chunks < 1 || !(speed > 0) ||
      std::isinf(speed)) {
    refuse("a profile of ", profile.rows, " rows cannot be scaled to ", rows,
           " rows in ", chunks, " chunks on a device of speed ", speed,
           ": all four must be above 0, and finite");
  }
  planner::Problem problem;
  problem.workloads = {detail::workload_of(profile, rows, chunks)};
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
