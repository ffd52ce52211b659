#include "balancing/planner/workload.h"

#include <cstddef>

#include "gpipe/schedule/microbatches.h"

namespace gpipe::balancing::detail {
namespace {

// Returns the seconds of a layer for each micro-batch.
LayerTime microbatch_time(const PlanSample& sample, const LayerTime& time) {
  const auto count = static_cast<double>(sample.chunks);
  const double sums = time.accumulate * (count - 1) / count;
  const double scale = sample.mean_scale;
  const double backward = scale * time.backward;
  LayerTime result{scale * time.forward, backward + sums};
  if (time.backward_input != 0 || time.backward_weight != 0) {
    result.backward_input = scale * time.backward_input;
    result.backward_weight = scale * time.backward_weight + sums;
  } else {
    result.backward_input = backward / 2;
    result.backward_weight = backward / 2 + sums;
  }
  return result;
}

}  // namespace

PlanSample sample_of(const Profile& profile, int64_t rows, int64_t chunks) {
  PlanSample sample;
  sample.profile = &profile;
  sample.chunks = num_microbatches(rows, chunks);
  const auto profiled = static_cast<double>(profile.rows);
  sample.mean_scale =
      static_cast<double>(rows) / static_cast<double>(sample.chunks) / profiled;
  sample.most_scale =
      static_cast<double>(rows_per_microbatch(rows, chunks)) / profiled;
  return sample;
}

planner::Workload workload_of(const PlanSample& sample) {
  const Profile& profile = *sample.profile;
  const double scale = sample.most_scale;
  planner::Workload workload;
  workload.microbatches = sample.chunks;
  for (std::size_t k = 0; k < profile.times.size(); ++k) {
    const LayerTime time = microbatch_time(sample, profile.times[k]);
    const LayerMemory& memory = profile.memory.layers[k];
    planner::Layer& layer = workload.layers.emplace_back();
    layer.forward = layer.recompute = time.forward;
    layer.backward = time.backward;
    layer.backward_input = time.backward_input;
    layer.backward_weight = time.backward_weight;
    layer.output_bytes = scale * static_cast<double>(memory.output_bytes);
    layer.trained_bytes = static_cast<double>(memory.trained_bytes);
    layer.fixed_bytes = static_cast<double>(
        memory.parameter_bytes - memory.trained_bytes + memory.buffer_bytes);
  }
  for (const SavedTensor& saved : profile.memory.saved) {
    if (saved.savers.empty()) continue;
    workload.saved.push_back(
        {scale * static_cast<double>(saved.bytes), saved.savers});
  }
  for (const SkipMemory& skip : profile.memory.skips) {
    workload.skips.push_back({skip.stashed_by, skip.popped_by,
                              scale * static_cast<double>(skip.bytes)});
  }
  return workload;
}

}  // namespace gpipe::balancing::detail
