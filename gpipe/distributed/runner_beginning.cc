// The beginning of a step: what this rank was given, compared with what the
// others were given.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/bytes/crc32c.h"
#include "gpipe/distributed/beginning.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/route.h"
#include "gpipe/distributed/runner.h"
#include "gpipe/distributed/world/all_gather.h"
#include "gpipe/distributed/world/failure_conversion.h"
#include "gpipe/runtime/cell/random.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/operators/random.h"
#include "gpipe/runtime/step/train_schedule.h"
#include "gpipe/schedule/difference.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/text.h"

namespace gpipe::internal {
namespace {

// Returns the exception that `part` throws, or null.
template <typename Part>
std::exception_ptr exception_of(Part part) {
  try {
    part();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

bool has_tensors(const Value& value) {
  for (const at::Tensor& each : value.tensors()) {
    if (each.defined()) return true;
  }
  return false;
}

}  // namespace

Runner::TrainPlan Runner::make_plan(const Schedule& schedule,
                                    Checkpoint checkpoint) const {
  const std::vector<int> placed = check_schedule(
      schedule, workers_.stages().size(), layout_.ranks, "DistributedOptions");
  for (std::size_t s = 0; s < placed.size(); ++s) {
    TORCH_CHECK_VALUE(placed[s] == layout_.rank_of_stage[s],
                      "the schedule has stage ", s, " on rank ", placed[s],
                      ", but its layers are on rank ", layout_.rank_of_stage[s],
                      "; make the pipeline with the schedule's "
                      "DistributedOptions::placement");
  }
  Plan whole(with_checkpoint(schedule, checkpoint));
  Plan mine = whole.of_rank(layout_.rank);
  const std::string text = to_csv(whole.schedule);
  TrainPlan plan{crc32c(text.data(), static_cast<int64_t>(text.size())),
                 std::move(whole),
                 std::move(mine),
                 {}};
  for (int from = 0; from < layout_.ranks; ++from) {
    if (from == layout_.rank) continue;
    auto bundles = route(plan.whole.schedule, layout_.rank_of_stage,
                         workers_.stages().links, from, layout_.rank);
    if (!bundles.empty()) plan.incoming.emplace(from, std::move(bundles));
  }
  return plan;
}

StepPlan Runner::plan(const Schedule& schedule, Checkpoint checkpoint) {
  plan_ = &plans_.get(schedule, checkpoint,
                      [&] { return make_plan(schedule, checkpoint); });
  return {plan_->whole.schedule, plan_->mine};
}

// Only the first ranks know the rows and the seed. Other ranks get both with
// their first messages. If the batch was already split, the targets count the
// rows, and only the last ranks know these.
std::optional<int64_t> Runner::begin(
    const StepArguments& given, const std::function<TrainStep&()>& prepare) {
  const TrainStep* step = nullptr;
  Beginning mine;
  const std::exception_ptr refusal = exception_of([&] { step = &prepare(); });
  if (refusal) {
    mine.refused = true;
    mine.refusal = cause_of(refusal);
  } else {
    mine = beginning_of(*step, given);
  }
  const std::vector<Beginning> all = begin_together(mine, refusal);

  widths_.clear();
  rows_.assign(step->microbatches(), 0);
  all_rows_ = 0;
  int64_t sum = 0;
  for (const int member : layout_.same_stages()) {
    // Another replica may have a target without tensors, which has no rows.
    sum += std::max(all[member].rows, int64_t{0});
  }
  if (layout_.has_first()) {
    seed_ = all[layout_.same_stages().front()].seed;
    rows_ = step->rows();
    all_rows_ = sum;
    return sum;
  }
  if (layout_.has_last() && given.loss && given.target.split()) return sum;
  return std::nullopt;
}

Beginning Runner::beginning_of(const TrainStep& step,
                               const StepArguments& given) const {
  Beginning mine;
  mine.schedule = plan_->checksum;
  mine.seed = StepSeed::peek();
  const bool has_target =
      layout_.has_last() && given.loss &&
      (given.target.split() || has_tensors(given.target.whole()));
  if (layout_.has_first() || has_target) {
    mine.split =
        layout_.has_first() ? given.input.split() : given.target.split();
    mine.rows =
        std::accumulate(step.rows().begin(), step.rows().end(), int64_t{0});
  }
  return mine;
}

std::vector<Beginning> Runner::begin_together(
    const Beginning& mine, const std::exception_ptr& refusal) {
  std::vector<Beginning> all;
  for (const std::string& bytes : all_gather(
           *world_, tags_.words, mine.encode(), "the beginning of a step")) {
    all.push_back(Beginning::decode(bytes));
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].refused) continue;
    throw_together(refusal, {static_cast<int>(rank), all[rank].refusal});
  }
  if (const auto other = find_other_schedule(all)) {
    // No rank has refused, so all have a plan, and all come here.
    const auto texts =
        all_gather(*world_, tags_.words, to_csv(plan_->whole.schedule),
                   "comparing the schedules of a step");
    const auto name = [](int rank) {
      return "the schedule of rank " + std::to_string(rank);
    };
    const std::string what = describe_difference(
        parse_schedule(texts[other->rank]), name(other->rank),
        parse_schedule(texts[other->most]), name(other->most));
    throw_together(exception_of([&] {
                     TORCH_CHECK_VALUE(
                         false,
                         "the ranks were given different schedules: ", what,
                         "; give all ranks the same schedule, and the same "
                         "mode (train() or eval())");
                   }),
                   {other->rank, what});
  }
  if (const auto misfit = find_other_rows(all, layout_)) {
    const bool own = misfit->rank == world_->rank();
    throw_together(
        own ? exception_of([&] { TORCH_CHECK_VALUE(false, misfit->what); })
            : nullptr,
        *misfit);
  }
  return all;
}

void Runner::throw_together(const std::exception_ptr& own,
                            const Misfit& misfit) {
  agreed_ = true;
  meet_before_throwing();
  if (own) std::rethrow_exception(own);
  throw_peer_error({Fault::kRefused, misfit.rank, misfit.rank, "", misfit.what},
                   world_->rank());
}

void Runner::meet_before_throwing() {
  try {
    all_gather(*world_, tags_.words, "", "the end of a refused step");
  } catch (const PeerError&) {
    // A rank has left after all had met.
  }
}

}  // namespace gpipe::internal
