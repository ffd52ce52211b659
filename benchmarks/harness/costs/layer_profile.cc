#include "benchmarks/harness/costs/layer_profile.h"

#include <ATen/Parallel.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "balancing/profile/threads_scope.h"
#include "benchmarks/harness/costs/layer_kinds.h"
#include "gpipe/base/devices.h"
#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

using balancing::LayerTime;
using Kinds = std::vector<std::string>;

// The sweeps over the layers that must fit into the time: one to warm up, one
// to measure, and one more.
constexpr double kSweeps = 3;

// Returns the kinds of the layers of the experiment's model. Allocates no
// memory.
Kinds kinds_of(const Benchmark& benchmark, const Workload& workload,
               const Experiment& experiment) {
  const MetaGuard meta;
  return layer_kinds(benchmark.model(experiment), workload.input(1));
}

// Returns the experiment with the smallest depth whose model has all `kinds`.
Experiment most_shallow(const Benchmark& benchmark, const Workload& workload,
                        const Experiment& experiment, const Kinds& kinds) {
  if (experiment.size.empty()) return experiment;
  Experiment shallow = experiment;
  for (int64_t depth = 1; depth < experiment.size[0]; ++depth) {
    shallow.size[0] = depth;
    try {
      if (covers(kinds_of(benchmark, workload, shallow), kinds)) {
        return shallow;
      }
    } catch (const c10::ValueError&) {
      // The model does not support this depth.
    }
  }
  return experiment;
}

LayerTime total(const std::vector<LayerTime>& times) {
  LayerTime sum;
  for (const LayerTime& time : times) {
    sum.forward += time.forward;
    sum.backward += time.backward;
  }
  return sum;
}

std::string size_text(const Experiment& experiment) {
  return experiment.size.empty()
             ? "The model"
             : "(" + absl::StrJoin(experiment.size, ",") + ")";
}

std::string note_on(const Experiment& experiment, const Experiment& timed,
                    const Kinds& kinds, const balancing::Profile& profile) {
  const LayerTime sum = total(profile.times);
  const std::string text = absl::StrFormat(
      " on %s%s, %ld rows: %zu layers of %zu kinds take %.3g s forward "
      "and %.3g s backward.",
      profile.device.c_str(), profile.device == "cpu" ? " (one thread)" : "",
      profile.rows, kinds.size(),
      std::set<std::string>(kinds.begin(), kinds.end()).size(), sum.forward,
      sum.backward);
  return size_text(experiment) +
         (timed.size == experiment.size ? " was timed"
                                        : " was timed as " + size_text(timed)) +
         text;
}

}  // namespace

LayerProfile profile_layers(const Benchmark& benchmark,
                            const Workload& workload,
                            const Experiment& experiment, int64_t rows,
                            double seconds, std::optional<c10::Device> chosen) {
  const Kinds kinds = kinds_of(benchmark, workload, experiment);
  const Experiment shallow =
      most_shallow(benchmark, workload, experiment, kinds);
  const Kinds timed = kinds_of(benchmark, workload, shallow);
  balancing::Profile profile;
  const c10::Device device = chosen ? *chosen : all_devices().front();
  profile.device = device.str();
  {
    const balancing::ThreadsScope one_thread(
        device.is_cpu() ? 1 : at::get_num_threads());
    const auto model = benchmark.model(shallow);
    const auto time = [&](int64_t rows, double timeout) {
      const auto times = balancing::profile_times(
          model, workload.input(rows),
          balancing::TimeOptions().timeout(timeout).device(device));
      profile.rows = rows;
      profile.times = times_by_kind(kinds, timed, times);
      return total(times).total();  // seconds of one sweep
    };
    const double affordable = seconds / (kSweeps * time(1, 0));
    rows = std::min(rows, static_cast<int64_t>(affordable));
    if (rows > 1) time(rows, seconds / (2 * kSweeps));
  }
  const MetaGuard meta;
  const auto model = benchmark.model(experiment);
  for (const auto& child : model->named_children()) {
    profile.names.push_back(child.key());
  }
  profile.memory =
      balancing::profile_memory(model, workload.input(profile.rows));
  std::string note = note_on(experiment, shallow, kinds, profile);
  return {std::move(profile), std::move(note)};
}

}  // namespace gpipe::benchmarks
