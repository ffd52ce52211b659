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
#include "gpipe/distributed/route.h"
#include "gpipe/distributed/runner.h"
#include "gpipe/distributed/world/error.h"
#include "gpipe/distributed/world/failure_conversion.h"
#include "gpipe/distributed/world/gather.h"
#include "gpipe/distributed/world/report.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/random.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/schedule/difference.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/text.h"

namespace gpipe::internal {
namespace {

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
      schedule, stages_.size(), layout_.ranks, "DistributedOptions");
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
                         stages_.links, from, layout_.rank);
    if (!bundles.empty()) plan.incoming.emplace(from, std::move(bundles));
  }
  return plan;
}

void Runner::give(TrainStep& step, const Batch& input, const Batch& target,
                  const LossFunction* loss) {
  if (layout_.has_first()) {
    // Input on the CPU is copied by micro-batch. Input on another accelerator
    // is refused: nothing would make the copy wait for work still running
    // there.
    check_device(input, {executor_.devices().front(), c10::Device(c10::kCPU)},
                 "device()");
    check_rows(input, stages_.unsplit);
    step.give_input(input);
  }
  if (input.split() || target.split()) step.keep_outputs_split();
  if (layout_.has_last() && loss) step.give_target(target, *loss);
}

Beginning Runner::beginning_of(const TrainStep& step, const TrainPlan& plan,
                               const Batch& input, const Batch& target,
                               const LossFunction* loss) const {
  Beginning mine;
  mine.schedule = plan.checksum;
  mine.seed = StepSeed::peek();
  const bool has_target = layout_.has_last() && loss &&
                          (target.split() || has_tensors(target.whole()));
  if (layout_.has_first() || has_target) {
    mine.split = layout_.has_first() ? input.split() : target.split();
    mine.rows =
        std::accumulate(step.rows().begin(), step.rows().end(), int64_t{0});
  }
  return mine;
}

std::vector<Beginning> Runner::begin_together(const Beginning& mine,
                                              const TrainPlan* plan,
                                              const std::exception_ptr& refusal,
                                              bool& agreed) {
  std::vector<Beginning> all;
  for (const std::string& bytes : all_gather(
           *world_, tags_.words, mine.encode(), "the beginning of a step")) {
    all.push_back(Beginning::decode(bytes));
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].refused) continue;
    throw_together(refusal, {static_cast<int>(rank), all[rank].refusal},
                   agreed);
  }
  if (const auto other = find_other_schedule(all)) {
    // No rank has refused, so all have a plan, and all come here.
    const auto texts =
        all_gather(*world_, tags_.words, to_csv(plan->whole.schedule),
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
                   {other->rank, what}, agreed);
  }
  if (const auto misfit = find_other_rows(all, layout_)) {
    const bool own = misfit->rank == world_->rank();
    throw_together(
        own ? exception_of([&] { TORCH_CHECK_VALUE(false, misfit->what); })
            : nullptr,
        *misfit, agreed);
  }
  return all;
}

void Runner::throw_together(const std::exception_ptr& own, const Misfit& misfit,
                            bool& agreed) {
  agreed = true;
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

// Only the first ranks know the rows and the seed. Other ranks get both with
// their first messages. If the batch was already split, the targets count the
// rows, and only the last ranks know these.
void Runner::start(TrainStep& step, const std::vector<Beginning>& all,
                   bool counts_rows) {
  widths_.clear();
  rows_.assign(step.microbatches(), 0);
  all_rows_ = 0;
  if (!counts_rows) {
    step.start();
    return;
  }
  int64_t sum = 0;
  for (const int member : layout_.same_stages()) {
    // Another replica may have a target without tensors, which has no rows.
    sum += std::max(all[member].rows, int64_t{0});
  }
  step.start(sum);
  if (!layout_.has_first()) return;
  seed_ = all[layout_.same_stages().front()].seed;
  rows_ = step.rows();
  all_rows_ = sum;
  step.seed().set(seed_);
}

}  // namespace gpipe::internal
