#include "gpipe/distributed/runner.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/distributed/ending.h"
#include "gpipe/distributed/replicas/member_rows.h"
#include "gpipe/distributed/replicas/norms.h"
#include "gpipe/distributed/replicas/reduce.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/failure_conversion.h"
#include "gpipe/distributed/world/gather.h"
#include "gpipe/distributed/world/report.h"
#include "gpipe/runtime/cell/random.h"
#include "gpipe/schedule/placement.h"

namespace gpipe::internal {

Runner::Runner(std::shared_ptr<World> world, std::vector<Partition> partitions,
               RankLayout layout, c10::Device device, int threads,
               Transfers transfers, ForeignParameters foreign, Unsplit unsplit,
               bool shard_optimizer)
    : world_(std::move(world)),
      layout_(std::move(layout)),
      tags_(world_->next_channel()),
      foreign_(std::move(foreign)),
      stages_(std::move(partitions), layout_.rank_of_stage),
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

StepResult Runner::step(const Batch& input, const Batch& target,
                        const LossFunction* loss, const Schedule& schedule,
                        Checkpoint checkpoint, const TrainOptions& options,
                        const std::function<void()>& check_model) {
  executor_.check_caller();
  if (has_backward(schedule)) executor_.check_backward();
  std::unique_lock<std::mutex> running(running_);
  world_->check();
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_.reset();
  }
  bool agreed = false;
  try {
    std::optional<TrainStep> step;
    const TrainPlan* plan = nullptr;
    const std::exception_ptr refusal = exception_of([&] {
      check_model();
      plan = &plans_.get(schedule, checkpoint,
                         [&] { return make_plan(schedule, checkpoint); });
      // std::optional cannot see the private base.
      RemoteStages* const remote = this;
      step.emplace(
          stages_, plan->whole.schedule, options, remote,
          layout_.replica * int64_t{num_microbatches(plan->whole.schedule)});
      give(*step, input, target, loss);
    });
    Beginning mine;
    if (refusal) {
      mine.refused = true;
      mine.refusal = cause_of(refusal);
    } else {
      mine = beginning_of(*step, *plan, input, target, loss);
    }
    const std::vector<Beginning> all =
        begin_together(mine, plan, refusal, agreed);
    start(
        *step, all,
        layout_.has_first() || (layout_.has_last() && loss && target.split()));
    return run(
        *step, *plan, options, [&] { running.unlock(); }, agreed);
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

StepResult Runner::run(TrainStep& step, const TrainPlan& plan,
                       const TrainOptions& options,
                       const std::function<void()>& let_go, bool& agreed) {
  ++number_;
  checksum_ = plan.checksum;
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
  step_ = &step;
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
  foreign_.check(step.leaves());
  if (layout_.has_last()) result = step.result();
  // Before end_together(), because other ranks may still run their part.
  add_up(step);
  step.check_sums();
  step.finish();
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

void Runner::perform(TrainStep& step, const TrainPlan& plan) {
  const auto error = executor_.run(plan.mine, step.pass(), recording_);
  if (!error) return;
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_ = error->failure;
  }
  report_failure(*world_, error->exception, error->failure.place());
  std::rethrow_exception(error->exception);
}

LossTotals Runner::end_together(const TrainStep& step, StepResult& result,
                                bool& agreed) {
  Ending mine;
  mine.drew = step.drew();
  mine.replica = layout_.replica;
  if (!result.losses.empty()) mine.type = result.losses.back().scalar_type();
  mine.totals = step.totals();
  mine.losses = mine.totals.losses;

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
    for (const Ending& ending : endings) totals.add(ending.totals);
    totals.check();
  } catch (...) {
    meet_before_throwing();
    throw;
  }
  if (layout_.has_last() && totals.sum.defined()) {
    result.loss = result.losses.back();  // for its device
  }
  return totals;
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
  bool agreed = false;
  try {
    if (!shards_) {
      return gpipe::internal::clip_grad_norm(*world_, layout_.pipeline(),
                                             tags_.words, parameters, max_norm,
                                             norm_type, agreed);
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
                                           shards, max_norm, norm_type, agreed);
  } catch (...) {
    if (!agreed) {
      report_failure(*world_, std::current_exception(), "clip_grad_norm_()");
    }
    throw;
  }
}

}  // namespace gpipe::internal
