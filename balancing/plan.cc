#include "balancing/plan.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "balancing/chain/chain.h"
#include "balancing/threads_scope.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/device/threads.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::balancing {
namespace {

constexpr int64_t kChunksPerPartition = 8;
constexpr double kNever = std::numeric_limits<double>::infinity();

bool is_positive(double number) { return std::isfinite(number) && number > 0; }

void check(int64_t rows, const std::vector<PlanDevice>& devices,
           const PlanOptions& options) {
  TORCH_CHECK_VALUE(!devices.empty(), "plan: there must be at least 1 device");
  TORCH_CHECK_VALUE(rows >= 1,
                    "plan: a mini-batch must have at least 1 row, but it has ",
                    rows);
  for (std::size_t j = 0; j < devices.size(); ++j) {
    TORCH_CHECK_VALUE(is_positive(devices[j].speed()),
                      "plan: the speed of device ", j, " is ",
                      devices[j].speed(), ", but must be above 0");
    TORCH_CHECK_VALUE(devices[j].memory_bytes() >= 0, "plan: device ", j,
                      " has ", devices[j].memory_bytes(),
                      " bytes of memory, but must have at least 0");
  }
  for (const int64_t chunks : options.chunks()) {
    TORCH_CHECK_VALUE(chunks >= 1,
                      "plan: chunks must be at least 1, but there is ", chunks);
  }
  TORCH_CHECK_VALUE(!options.checkpoints().empty(),
                    "plan: there must be at least 1 checkpoint mode");
  TORCH_CHECK_VALUE(
      std::isfinite(options.param_scale()) && options.param_scale() >= 0,
      "plan: param_scale must be a number >= 0, but is ",
      options.param_scale());
  TORCH_CHECK_VALUE(std::isfinite(options.latency()) && options.latency() >= 0,
                    "plan: latency must be a number of seconds >= 0, but is ",
                    options.latency());
  TORCH_CHECK_VALUE(options.bandwidth() > 0,
                    "plan: bandwidth must be above 0, but is ",
                    options.bandwidth());
  TORCH_CHECK_VALUE(options.workers() >= 0,
                    "plan: workers must be at least 0, but is ",
                    options.workers());
}

std::vector<int64_t> chunks_to_try(const PlanOptions& options, int64_t rows,
                                   std::size_t partitions) {
  std::vector<int64_t> given = options.chunks();
  if (given.empty()) {
    const auto most = kChunksPerPartition * static_cast<int64_t>(partitions);
    for (int64_t chunks = 1; chunks <= most; chunks *= 2) {
      given.push_back(chunks);
    }
  }
  // The actual number of micro-batches can be smaller: 5 rows in 4 chunks give
  // 2, 2 and 1.
  std::set<int64_t> actual;
  for (const int64_t chunks : given) {
    const int64_t each = (rows + chunks - 1) / chunks;
    actual.insert((rows + each - 1) / each);
  }
  return {actual.begin(), actual.end()};
}

std::vector<c10::Device> places(const std::vector<PlanDevice>& devices) {
  std::vector<c10::Device> result;
  for (const PlanDevice& device : devices) result.push_back(device.device());
  return result;
}

// Returns how many partitions can compute at the same time.
int64_t workers_of(const std::vector<PlanDevice>& devices,
                   const PlanOptions& options) {
  const auto all = static_cast<int64_t>(devices.size());
  if (options.workers() > 0) return std::min(all, options.workers());
  if (!devices[0].device().is_cpu()) return all;
  const auto cores =
      static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  return std::clamp<int64_t>(
      cores / internal::share_of_threads(places(devices)), 1, all);
}

ChainCheckpoint for_chain(Checkpoint checkpoint) {
  switch (checkpoint) {
    case Checkpoint::kAlways:
      return ChainCheckpoint::kAlways;
    case Checkpoint::kExceptLast:
      return ChainCheckpoint::kExceptLast;
    case Checkpoint::kNever:
      break;
  }
  return ChainCheckpoint::kNever;
}

// One number of micro-batches with one checkpoint mode.
class Candidate {
 public:
  // `scale`: rows of a micro-batch divided by the rows of the profile.
  Candidate(const Profile& profile, double scale,
            const std::vector<PlanDevice>& devices, const PlanOptions& options,
            int64_t chunks, Checkpoint checkpoint)
      : profile_(profile),
        scale_(scale),
        devices_(devices),
        options_(options),
        chunks_(chunks),
        checkpoint_(checkpoint) {}

  // Throws InfeasibleError if no cut fits.
  Plan plan() const {
    const Chain chain = make_chain();
    Plan plan;
    plan.balance = balance_chain(with_recomputes(chain));
    plan.chunks = chunks_;
    plan.checkpoint = checkpoint_;

    Costs costs;
    std::vector<double> copies;
    const auto stages = stage_costs(chain, plan.balance);
    int64_t first = 0;
    for (std::size_t j = 0; j < stages.size(); ++j) {
      PlannedPartition part;
      part.device = devices_[j].device();
      part.first_layer = first;
      part.layers = plan.balance[j];
      part.forward = stages[j].forward;
      part.backward = stages[j].backward;
      part.memory_limit = devices_[j].memory_bytes();
      part.memory_bytes = memory_of(chain, j, first, first + part.layers);
      costs.forward.push_back(part.forward);
      costs.backward.push_back(part.backward);
      costs.recompute.push_back(part.forward);
      if (j > 0) copies.push_back(stages[j].transfer);
      first += part.layers;
      plan.partitions.push_back(part);
    }
    const Timeline timeline = run(costs, copies);
    plan.step_seconds = timeline.makespan;
    for (std::size_t j = 0; j < stages.size(); ++j) {
      if (plan.step_seconds <= 0) continue;
      plan.partitions[j].idle = timeline.idle[j] / plan.step_seconds;
    }
    double bubble = 0;
    for (const PlannedPartition& part : plan.partitions) bubble += part.idle;
    for (PlannedPartition& part : plan.partitions) {
      if (bubble > 0) part.bubble_share = part.idle / bubble;
    }
    return plan;
  }

 private:
  int64_t recomputed() const {
    return checkpointed_microbatches(checkpoint_, chunks_);
  }

  Schedule schedule() const {
    const auto stages = static_cast<int>(devices_.size());
    const auto count = static_cast<int>(chunks_);
    return with_recompute(
        options_.schedule() == PlanSchedule::kFillDrain
            ? fill_drain(stages, count)
            : one_forward_one_backward(stages, count),
        [count = recomputed()](int microbatch) { return microbatch < count; });
  }

  // Simulates a step. `copies`: seconds from each partition to the next.
  Timeline run(const Costs& costs, const std::vector<double>& copies) const {
    const auto workers = static_cast<double>(workers_of(devices_, options_));
    Timeline shared = simulate_on_cores(schedule(), costs, workers);
    if (std::none_of(copies.begin(), copies.end(),
                     [](double seconds) { return seconds > 0; })) {
      return shared;
    }
    Costs with_copies = costs;
    with_copies.boundary_bytes = copies;
    with_copies.bandwidth = 1;  // so that bytes are seconds
    Timeline timeline = simulate(schedule(), with_copies);
    // The combined effect of shared cores and copies is not known, so the
    // slower of both predictions is used.
    return timeline.makespan < shared.makespan ? shared : timeline;
  }

  double scaled(int64_t bytes) const {
    return scale_ * static_cast<double>(bytes);
  }

  double resident(int64_t layer) const {
    const LayerMemory& memory = profile_.memory.layers[layer];
    return options_.param_scale() * static_cast<double>(memory.trained_bytes) +
           static_cast<double>(memory.parameter_bytes - memory.trained_bytes +
                               memory.buffer_bytes);
  }

  Chain make_chain() const {
    Chain chain;
    chain.microbatches = chunks_;
    chain.link = {options_.latency(), 1 / options_.bandwidth()};
    for (const PlanDevice& device : devices_) {
      chain.devices.push_back({device.speed(), device.memory_bytes()});
    }
    for (std::size_t k = 0; k < profile_.times.size(); ++k) {
      const LayerTime& time = profile_.times[k];
      ChainLayer layer;
      layer.forward = scale_ * time.forward;
      layer.backward = scale_ * time.backward;
      layer.output_bytes = scaled(profile_.memory.layers[k].output_bytes);
      layer.resident_bytes = resident(static_cast<int64_t>(k));
      chain.layers.push_back(layer);
    }
    // A tensor that several layers keep counts for the first of them. In
    // another partition it arrives from outside and is counted there as input.
    for (const SavedTensor& saved : profile_.memory.saved) {
      if (saved.savers.empty()) continue;
      chain.layers[saved.savers[0]].saved_bytes += scaled(saved.bytes);
    }
    for (const SkipMemory& skip : profile_.memory.skips) {
      chain.skips.push_back(
          {skip.stashed_by, skip.popped_by, scaled(skip.bytes)});
    }
    keep_for(chain,
             options_.schedule() == PlanSchedule::kFillDrain
                 ? ChainSchedule::kFillDrain
                 : ChainSchedule::kOneForwardOneBackward,
             for_chain(checkpoint_));
    return chain;
  }

  // When the cut is chosen, a recompute counts as part of its backward.
  Chain with_recomputes(Chain chain) const {
    if (recomputed() == 0) return chain;
    for (ChainLayer& layer : chain.layers) layer.backward += layer.forward;
    return chain;
  }

  double memory_of(const Chain& chain, std::size_t partition, int64_t first,
                   int64_t last) const {
    double bytes = 0;
    for (int64_t k = first; k < last; ++k) bytes += resident(k);
    bytes += static_cast<double>(chain.graphs_kept[partition]) *
             scaled(profile_.memory.saved_bytes(first, last));
    if (partition > 0) {
      bytes += static_cast<double>(chain.inputs_kept[partition]) *
               scaled(profile_.memory.incoming_bytes(first, last));
    }
    return bytes;
  }

  const Profile& profile_;
  const double scale_;
  const std::vector<PlanDevice>& devices_;
  const PlanOptions& options_;
  const int64_t chunks_;
  const Checkpoint checkpoint_;
};

// Tries candidates and keeps the best one.
class Planner {
 public:
  Planner(const std::vector<PlanDevice>& devices, const PlanOptions& options)
      : devices_(devices), options_(options) {}

  void try_modes(const Profile& profile, double scale, int64_t chunks) {
    for (const Checkpoint checkpoint : options_.checkpoints()) {
      PlanCandidate tried{chunks, checkpoint, kNever, ""};
      try {
        Plan plan =
            Candidate(profile, scale, devices_, options_, chunks, checkpoint)
                .plan();
        tried.step_seconds = plan.step_seconds;
        if (!best_ || plan.step_seconds < best_->step_seconds) {
          best_ = std::move(plan);
        }
      } catch (const InfeasibleError& error) {
        tried.remark = error.what();
        if (!nearest_ || error.least_bytes() < nearest_->least_bytes()) {
          nearest_ = error;
        }
      }
      candidates_.push_back(std::move(tried));
    }
  }

  Plan take() {
    if (!best_) throw InfeasibleError(*nearest_);
    best_->candidates = std::move(candidates_);
    return *std::move(best_);
  }

 private:
  const std::vector<PlanDevice>& devices_;
  const PlanOptions& options_;
  std::optional<Plan> best_;
  std::optional<InfeasibleError> nearest_;
  std::vector<PlanCandidate> candidates_;
};

void check_layers(std::size_t layers, const std::vector<PlanDevice>& devices) {
  TORCH_CHECK_VALUE(layers >= devices.size(), "plan: cannot cut ", layers,
                    " layers for ", devices.size(),
                    " devices: each needs a layer of its own");
}

}  // namespace

GPipeOptions Plan::options() const {
  std::vector<torch::Device> devices;
  for (const PlannedPartition& partition : partitions) {
    devices.push_back(partition.device);
  }
  return GPipeOptions(balance).devices(devices).chunks(chunks).checkpoint(
      checkpoint);
}

Plan plan(const Profile& profile, int64_t rows,
          const std::vector<PlanDevice>& devices, const PlanOptions& options) {
  check(rows, devices, options);
  check_layers(profile.times.size(), devices);
  TORCH_CHECK_VALUE(profile.rows >= 1, "plan: the profile has ", profile.rows,
                    " rows, but must have at least 1");
  Planner planner(devices, options);
  for (const int64_t chunks : chunks_to_try(options, rows, devices.size())) {
    const int64_t each = (rows + chunks - 1) / chunks;
    planner.try_modes(
        profile, static_cast<double>(each) / static_cast<double>(profile.rows),
        chunks);
  }
  return planner.take();
}

namespace detail {

Plan plan(const torch::nn::Sequential& model, const internal::Value& input,
          const std::vector<PlanDevice>& devices, const PlanOptions& options) {
  TORCH_CHECK_VALUE(!model.is_empty(), "plan: the model is null");
  const int64_t rows = internal::rows_of(input);
  check(rows, devices, options);
  check_layers(model->size(), devices);
  const ThreadsScope threads(options.profile().device().is_cpu()
                                 ? internal::share_of_threads(places(devices))
                                 : at::get_num_threads());
  // Profile under the conditions of training: the other partitions are busy at
  // the same time.
  TimeOptions profiled = options.profile();
  if (profiled.concurrent_copies() == 0 && profiled.device().is_cpu()) {
    const auto cores =
        static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    profiled.concurrent_copies(std::min(cores, workers_of(devices, options)) -
                               1);
  }
  Planner planner(devices, options);
  for (const int64_t chunks : chunks_to_try(options, rows, devices.size())) {
    planner.try_modes(profile(model, first_microbatch(input, chunks), profiled),
                      1, chunks);
  }
  return planner.take();
}

}  // namespace detail
}  // namespace gpipe::balancing
