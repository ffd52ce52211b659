#include "gpipe/distributed/runner.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include "gpipe/bytes/crc32c.h"
#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/distributed/channel/schedule_texts.h"
#include "gpipe/distributed/ending.h"
#include "gpipe/distributed/replicas/member_rows.h"
#include "gpipe/distributed/replicas/norms.h"
#include "gpipe/distributed/replicas/reduce.h"
#include "gpipe/distributed/route.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/failure_conversion.h"
#include "gpipe/distributed/world/gather.h"
#include "gpipe/distributed/world/report.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/random.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/text.h"

namespace gpipe::internal {
namespace {

// Ends the executor's run when another rank has refused the step.
struct Refused : std::exception {
  const char* what() const noexcept override { return "the step was refused"; }
};

bool is_refused(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Refused&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

Runner::Runner(std::shared_ptr<World> world, std::vector<Partition> partitions,
               RankLayout layout, c10::Device device, int threads,
               Transfers transfers, ForeignParameters foreign, Unsplit unsplit,
               bool shard_optimizer)
    : world_(std::move(world)),
      layout_(std::move(layout)),
      tags_(world_->next_channel()),
      foreign_(std::move(foreign)),
      stages_(std::move(partitions)),
      executor_({device}, threads, /*one_at_a_time=*/false),
      transport_(make_transport(*world_, device, transfers,
                                c10::str("pipeline ", tags_.payload))),
      sums_transport_(make_transport(*world_, device, transfers,
                                     c10::str("sums ", tags_.sums))) {
  stages_.unsplit = std::move(unsplit);
  if (layout_.replicas > 1) {
    sums_ = std::make_unique<ReplicaSums>(
        *world_, *sums_transport_, layout_.same_stages(), tags_.sums,
        shard_optimizer ? SumShare::kOwnRows : SumShare::kAll);
    if (shard_optimizer) {
      shards_.emplace(own_parameters(), layout_.replicas, layout_.replica);
    }
  }
  callback_ = world_->on_failure([this] { executor_.notify(0); });
}

Runner::~Runner() { world_->forget(callback_); }

std::optional<Failure> Runner::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

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
  publish_schedule(*world_, plan.checksum, text);
  for (int from = 0; from < layout_.ranks; ++from) {
    if (from == layout_.rank) continue;
    auto bundles = route(plan.whole.schedule, layout_.rank_of_stage,
                         stages_.links, from, layout_.rank);
    if (!bundles.empty()) plan.incoming.emplace(from, std::move(bundles));
  }
  return plan;
}

StepResult Runner::step(const Batch& input, const Batch& target,
                        const LossFunction* loss, const Schedule& schedule,
                        Checkpoint checkpoint, const TrainOptions& options) {
  executor_.check_caller();
  std::unique_lock<std::mutex> running(running_);
  world_->check();
  bool agreed = false;
  try {
    const TrainPlan& plan = plans_.get(
        schedule, checkpoint, [&] { return make_plan(schedule, checkpoint); });
    return run(
        input, target, loss, plan, options, [&] { running.unlock(); }, agreed);
  } catch (...) {
    if (agreed) throw;
    report_failure(*world_, std::current_exception(), "train_step()");
    if (sums_) sums_->stop();
    // If a sender's or receiver's thread has thrown, the exception here is only
    // a PeerError. rethrow() throws the original.
    for (auto& [from, receiver] : receivers_) receiver->rethrow();
    for (auto& [to, sender] : senders_) sender->rethrow();
    throw;
  }
}

StepResult Runner::run(const Batch& input, const Batch& target,
                       const LossFunction* loss, const TrainPlan& plan,
                       const TrainOptions& options,
                       const std::function<void()>& let_go, bool& agreed) {
  const int64_t before =
      layout_.replica * int64_t{num_microbatches(plan.whole.schedule)};
  TrainStep step(stages_, plan.whole.schedule, options, this, before);
  give(step, input, target, loss);
  ++number_;
  checksum_ = plan.checksum;
  start(step,
        layout_.has_first() || (layout_.has_last() && loss && target.split()));

  std::optional<Recording> recording;
  if (options.timeline()) {
    recording.emplace(executor_.devices(), options.memory());
  }
  // After the step, no thread may deliver to it.
  struct Flush {
    Runner& runner;
    ~Flush() {
      runner.flush();
      runner.step_ = nullptr;
      runner.recording_ = nullptr;
    }
  };
  step_ = refused_ ? nullptr : &step;
  recording_ = recording ? &*recording : nullptr;
  {
    const Flush flush{*this};
    try {
      begin_sums(step);
      receive(plan);
      perform(step, plan);
    } catch (...) {
      // Reported before flush(), which would otherwise wait for messages that
      // never come.
      report_failure(*world_, std::current_exception(), "train_step()");
      throw;
    }
  }

  StepResult result;
  if (!refused_) {
    foreign_.check(step.leaves());
    if (layout_.has_last()) result = step.result();
  }
  // Before end_together(), because other ranks may still run their part.
  add_up(step);
  if (!refused_) {
    step.check_sums();
    step.finish();
  }
  const LossTotals totals = end_together(step, result, agreed);
  agreed = false;
  totals.write_to(result);
  if (totals.weighted && step.with_backward()) {
    step.divide_gradients(totals.weight);
    // A division may fail for want of memory. Then no rank may change `.grad`.
    all_gather(*world_, tags_.words, "", "dividing gradients by the weight");
  }
  if (recording) {
    result.timeline = recording->timeline();
    result.timeline->first_rank = layout_.rank;
  }
  step.accumulate(let_go);
  return result;
}

void Runner::give(TrainStep& step, const Batch& input, const Batch& target,
                  const LossFunction* loss) {
  refusal_ = nullptr;
  refused_ = false;
  sent_.clear();
  try {
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
  } catch (...) {
    refuse();
  }
}

void Runner::refuse() {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  if (!refusal_) refusal_ = std::current_exception();
  refused_ = true;
}

void Runner::perform(TrainStep& step, const TrainPlan& plan) {
  const bool skipped = refused_;
  std::optional<ExecutorError> error;
  if (!skipped) error = executor_.run(plan.mine, step.pass(), recording_);
  const bool stopped = error && is_refused(error->exception);
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_.reset();
    if (error && !stopped) failure_ = error->failure;
  }
  if (skipped || stopped) {
    send_refusals(plan);
    if (!sums_) return;
    // Other replicas wait for the gradients of this one.
    for (const Partition& each : stages_.partitions) {
      if (!each.remote) sums_->close(each.index);
    }
    return;
  }
  if (error) {
    report_failure(*world_, error->exception, error->failure.place());
    std::rethrow_exception(error->exception);
  }
}

void Runner::check() {
  world_->check();
  if (refused_) throw Refused();
}

// Only the first ranks know the rows and the seed. Other ranks get both with
// their first messages. If the batch was already split, the targets count the
// rows, and only the last ranks know these.
void Runner::start(TrainStep& step, bool counts_rows) {
  widths_.clear();
  rows_.assign(step.microbatches(), 0);
  all_rows_ = 0;
  if (!counts_rows) {
    if (!refused_) step.start();
    return;
  }
  std::string mine;
  put(mine, refused_ ? int64_t{0}
                     : std::accumulate(step.rows().begin(), step.rows().end(),
                                       int64_t{0}));
  put(mine, StepSeed::peek());
  const auto all = all_gather(*world_, layout_.same_stages(), tags_.words, mine,
                              "the beginning of a step");
  int64_t sum = 0;
  for (const std::string& each : all) {
    std::size_t at = 0;
    sum += take<int64_t>(each, at);
  }
  if (refused_) return;
  step.start(sum);
  if (!layout_.has_first()) return;
  std::size_t at = sizeof(int64_t);
  seed_ = take<uint64_t>(all.front(), at);
  rows_ = step.rows();
  all_rows_ = sum;
  step.seed().set(seed_);
}

LossTotals Runner::end_together(const TrainStep& step, StepResult& result,
                                bool& agreed) {
  Ending mine;
  mine.drew = !refusal_ && step.drew();
  mine.replica = layout_.replica;
  for (const at::Tensor& each : result.losses) {
    mine.type = each.scalar_type();
    mine.losses.push_back(each.item<double>());
  }
  mine.totals = step.totals();
  if (refusal_) mine.refusal = cause_of(refusal_);

  const auto all =
      all_gather(*world_, tags_.words, mine.encode(), "the end of a step");
  bool drew = false;
  LossTotals totals;
  const c10::AutoGradMode no_graph(false);
  std::vector<Ending> endings;
  for (const std::string& bytes : all) {
    const Ending& ending = endings.emplace_back(Ending::decode(bytes));
    drew = drew || ending.drew;
    const bool own = ending.replica == layout_.replica;
    if (!own || layout_.has_last()) continue;
    for (const double loss : ending.losses) {
      result.losses.push_back(
          at::scalar_tensor(loss, at::TensorOptions(ending.type)));
    }
  }
  // One process would have drawn the seed from the default generator, too.
  if (drew) StepSeed::draw();
  agreed = true;
  try {
    check_refusals(endings);
    for (const Ending& ending : endings) totals.add(ending.totals);
    totals.check();
  } catch (...) {
    meet_before_throwing();
    throw;
  }
  if (layout_.has_last() && totals.sum.defined()) {
    result.loss = step.totals().sum;  // for its device
  }
  return totals;
}

void Runner::meet_before_throwing() {
  try {
    all_gather(*world_, tags_.words, "", "the end of a refused step");
  } catch (const PeerError&) {
    // A rank has left after all had met.
  }
}

void Runner::check_refusals(const std::vector<Ending>& endings) const {
  if (refusal_) std::rethrow_exception(refusal_);
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    if (endings[rank].refusal.empty()) continue;
    throw_peer_error({Fault::kRefused, static_cast<int>(rank),
                      static_cast<int>(rank), "", endings[rank].refusal},
                     world_->rank());
  }
}

int64_t Runner::from_first(const std::function<int64_t()>& number) {
  executor_.check_caller();
  std::lock_guard<std::mutex> running(running_);
  world_->check();
  return reporting_failure(*world_, "the number of micro-batches", [&] {
    std::string mine;
    put(mine, layout_.has_first() ? number() : int64_t{0});
    const auto all = all_gather(*world_, layout_.pipeline(), tags_.words, mine,
                                "the number of micro-batches");
    std::size_t at = 0;
    return take<int64_t>(all[layout_.rank_of_stage.front()], at);
  });
}

bool Runner::any(bool here) {
  executor_.check_caller();
  std::lock_guard<std::mutex> running(running_);
  world_->check();
  return reporting_failure(*world_, "any()", [&] {
    bool found = false;
    for (const std::string& each :
         all_gather(*world_, tags_.words, here ? "1" : "0", "any()")) {
      found = found || each == "1";
    }
    return found;
  });
}

double Runner::clip_grad_norm(
    const std::vector<std::pair<int64_t, at::Tensor>>& parameters,
    double max_norm, double norm_type) {
  executor_.check_caller();
  std::lock_guard<std::mutex> running(running_);
  world_->check();
  return reporting_failure(*world_, "clip_grad_norm_()", [&] {
    if (!shards_) {
      return gpipe::internal::clip_grad_norm(*world_, layout_.pipeline(),
                                             tags_.words, parameters, max_norm,
                                             norm_type);
    }
    // Each rank of each replica has a part of the vector.
    std::vector<std::pair<int64_t, at::Tensor>> shards;
    for (const auto& [layer, parameter] : parameters) {
      at::Tensor shard = shards_->shard_of(parameter);
      if (shard.defined()) shards.emplace_back(layer, std::move(shard));
    }
    std::vector<int> everybody(world_->size());
    std::iota(everybody.begin(), everybody.end(), 0);
    return gpipe::internal::clip_grad_norm(*world_, everybody, tags_.words,
                                           shards, max_norm, norm_type);
  });
}

}  // namespace gpipe::internal
