// The input of the planner: layers, ranks, links, and the choices to search,
// with the candidates that they give. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe::balancing::planner {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Layers per stage, each > 0.
using Balance = std::vector<int64_t>;

// The connection from one rank to another. A copy occupies it for its bytes
// times `seconds_per_byte`, and arrives `latency` seconds later. Both are
// finite and >= 0.
struct Link {
  double latency = 0;
  double seconds_per_byte = 0;
};

// One rank of a pipeline: a device with its host.
struct Rank {
  double speed = 1;  // finite and > 0; a layer takes its seconds / speed
  double memory_bytes = kInfinity;  // >= 0
  // Bytes per second between device and host, each way, > 0.
  double host_bandwidth = kInfinity;
  // How long the rank adds up gradients with its twins in other replicas of the
  // pipeline, for its trained bytes. At the end of the step, on all ranks at
  // the same time.
  Link sum = {};
};

// One layer with its costs for one micro-batch. All numbers are finite and >=
// 0.
struct Layer {
  // Seconds on a rank of speed 1. `backward` is the whole backward. The other
  // two are its parts in schedules that split it.
  double forward = 0, backward = 0, backward_input = 0, backward_weight = 0;
  double recompute = 0;
  // Bytes that the next layer receives. They are copied if the cut is after
  // this layer and the next stage is on another rank.
  double output_bytes = 0;
  // Bytes that do not depend on micro-batches. `trained_bytes` are parameters
  // that have gradients; see Problem::param_scale.
  double trained_bytes = 0, fixed_bytes = 0;
};

// A skip tensor (gpipe/skip.h) from one layer to a later one. If the two layers
// are in different stages, it counts as input of the stage that pops it. If
// they are on different ranks, too, it travels with the other input of that
// stage.
struct Skip {
  int64_t stashed_by = 0, popped_by = 0;  // layers; stashed_by < popped_by
  double bytes = 0;                       // per micro-batch
};

// Memory that the layers in `savers` (ascending, not empty) keep from forward
// to backward. A stage with at least one of these layers holds it once.
struct SavedBytes {
  double bytes = 0;  // per micro-batch
  std::vector<int64_t> savers;
};

// A model, split into some number of micro-batches.
struct Workload {
  int64_t microbatches = 1;
  std::vector<Layer> layers;
  std::vector<Skip> skips;
  std::vector<SavedBytes> saved;
  // What is held between the two parts of a split backward instead of `saved`.
  // Empty: the same.
  std::vector<SavedBytes> saved_for_weights;
};

// Which cells (a stage and a micro-batch) are recomputed before their backward:
// the same micro-batches of all stages, or kWhereNeeded.
using Recompute = std::optional<Checkpoint>;

// All micro-batches of some stages. If a rank has too little memory, its stages
// that save most are recomputed, as few of them as suffice.
inline constexpr Recompute kWhereNeeded = std::nullopt;

// Returns "never", "except_last", "always" or "where_needed".
inline const char* to_string(Recompute recompute) {
  return recompute ? gpipe::to_string(*recompute) : "where_needed";
}

// A training step that is to be planned.
struct Problem {
  // One workload for each number of micro-batches to try. All have the same
  // number of layers.
  std::vector<Workload> workloads;
  std::vector<Rank> ranks;
  // The links from rank a to rank b: links[a * ranks + b]. With one entry, all
  // links are equal. Empty: copies take no time.
  std::vector<Link> links;
  // Total bytes per byte of `trained_bytes`: parameters, gradients, optimizer.
  double param_scale = 2;
  // Seconds that each action takes besides its layers, on any rank.
  double action_seconds = 0;
  // How many ranks can compute at the same time, > 0. With fewer than ranks,
  // those that compute at the same time share the cores of one machine.
  double workers = kInfinity;

  // The choices. Names are those of gpipe/schedule/named.h.
  std::vector<std::string> schedules;
  std::vector<int64_t> stages_per_rank = {1, 2, 4};
  std::vector<Recompute> recomputes = {
      Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways};
  bool offload = false;  // whether candidates with offload are tried, too

  // Returns the link from rank `from` to rank `to`.
  Link link(int from, int to) const;
};

// The work that choose() may do. These are numbers and not times, so that
// results are reproducible.
struct Effort {
  // All cuts of a candidate are tried if there are at most this many.
  int64_t all_cuts = 2000;
  // Actions to simulate for all cuts of one candidate, and for the improvement
  // of the best candidates together.
  double actions_per_candidate = 2e6;
  double actions_to_improve = 2e7;
};

// Returns whether a rank has a memory limit.
bool has_limits(const Problem& problem);

// Throws std::invalid_argument unless all numbers of the workload are in their
// ranges. The text names the number and its place. O(n) for all numbers.
void check(const Workload& workload);

// Does the same for each workload. Throws std::invalid_argument also unless all
// workloads have as many layers, and if a step might take longer than the
// largest double. plan() (balancing/plan.h) has checked all else.
void check(const Problem& problem);

// ---- The combinations of choices that the planner tries

// All choices of a plan, except the cut.
struct Candidate {
  std::string schedule;  // a name of gpipe/schedule/named.h
  int64_t stages_per_rank = 1;
  std::size_t workload = 0;  // in Problem::workloads
  Recompute recompute = Checkpoint::kNever;
  // Whether the cells with at least kOffloadDistance actions of their rank
  // between forward and backward are offloaded in between; see distant_cells().
  bool offload = false;
};

// With 2, the copies of an offloaded cell have an action to run beside.
constexpr int kOffloadDistance = 2;

// Returns all candidates of a valid problem that have at most one stage per
// layer, the simplest first. The order is by: offload, schedule (in the order
// of schedule_names()), stages per rank, micro-batches, recompute mode (in the
// order of the problem).
//
// Candidates that equal a simpler one are left out: schedules for several
// stages per rank that become one of the others with one stage, and
// kWhereNeeded without a memory limit. Only kNever is combined with offload,
// since recomputed cells hold nothing that could be offloaded.
std::vector<Candidate> candidates(const Problem& problem);

// Returns the schedule of `candidate` for this problem, without recomputes and
// offload.
Schedule base_schedule(const Problem& problem, const Candidate& candidate);

// Returns how many of `microbatches` are recomputed, in all stages.
int64_t recomputed_microbatches(Recompute recompute, int64_t microbatches);

}  // namespace gpipe::balancing::planner
