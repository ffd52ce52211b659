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
#include "gpipe/distributed/replicas/norms.h"
#include "gpipe/distributed/replicas/reduce.h"
#include "gpipe/distributed/route.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/gather.h"
#include "gpipe/distributed/world/report.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/random.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/text.h"

namespace gpipe::internal {

Runner::Runner(std::shared_ptr<World> world, std::vector<Partition> partitions,
               RankLayout layout, c10::Device device, int threads,
               Transfers transfers, ForeignParameters foreign)
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
  if (layout_.replicas > 1) {
    sums_ = std::make_unique<ReplicaSums>(*world_, *sums_transport_,
                                          layout_.same_stages(), tags_.sums);
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

StepResult Runner::step(const Value& input, const Value& target,
                        const LossFunction* loss, const Schedule& schedule,
                        Checkpoint checkpoint, const TrainOptions& options) {
  executor_.check_caller();
  std::unique_lock<std::mutex> running(running_);
  world_->check();
  try {
    const TrainPlan& plan = plans_.get(
        schedule, checkpoint, [&] { return make_plan(schedule, checkpoint); });
    return run(input, target, loss, plan, options, [&] { running.unlock(); });
  } catch (...) {
    report_failure(*world_, std::current_exception(), "train_step()");
    if (sums_) sums_->stop();
    // If a sender's or receiver's thread has thrown, the exception here is only
    // a PeerError. rethrow() throws the original.
    for (auto& [from, receiver] : receivers_) receiver->rethrow();
    for (auto& [to, sender] : senders_) sender->rethrow();
    throw;
  }
}

StepResult Runner::run(const Value& input, const Value& target,
                       const LossFunction* loss, const TrainPlan& plan,
                       const TrainOptions& options,
                       const std::function<void()>& let_go) {
  const int64_t before =
      layout_.replica * int64_t{num_microbatches(plan.whole.schedule)};
  TrainStep step(stages_, plan.whole.schedule, options, this, before);
  if (layout_.has_first()) {
    // Input on the CPU is copied by micro-batch. Input on another accelerator
    // is refused: nothing would make the copy wait for work still running
    // there.
    check_device(input, {executor_.devices().front(), c10::Device(c10::kCPU)},
                 "device()");
    check_rows(input);
    step.give_input(input);
  }
  if (layout_.has_last() && loss) step.give_target(target, *loss);
  ++number_;
  checksum_ = plan.checksum;
  start(step);

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
      auto error = executor_.run(plan.mine, step.pass(),
                                 recording ? &*recording : nullptr);
      {
        std::lock_guard<std::mutex> lock(failure_mutex_);
        failure_.reset();
        if (error) failure_ = error->failure;
      }
      if (error) {
        report_failure(*world_, error->exception, error->failure.place());
        std::rethrow_exception(error->exception);
      }
    } catch (...) {
      // Reported before flush(), which would otherwise wait for messages that
      // never come.
      report_failure(*world_, std::current_exception(), "train_step()");
      throw;
    }
  }

  foreign_.check(step.leaves());
  StepResult result;
  if (layout_.has_last()) result = step.result();
  // Before end_together(), because other ranks may still run their part.
  add_up(step);
  step.check_sums();
  step.finish();
  end_together(step, result);
  if (recording) {
    result.timeline = recording->timeline();
    result.timeline->first_rank = layout_.rank;
  }
  step.accumulate(let_go);
  return result;
}

// Only the first ranks know the rows and the seed. Other ranks get both with
// their first messages.
void Runner::start(TrainStep& step) {
  widths_.clear();
  rows_.assign(step.microbatches(), 0);
  all_rows_ = 0;
  if (!layout_.has_first()) {
    step.start();
    return;
  }
  rows_ = step.rows();
  std::string mine;
  put(mine, std::accumulate(rows_.begin(), rows_.end(), int64_t{0}));
  put(mine, StepSeed::peek());
  const auto all = all_gather(*world_, layout_.same_stages(), tags_.words, mine,
                              "the beginning of a step");
  int64_t sum = 0;
  for (const std::string& each : all) {
    std::size_t at = 0;
    sum += take<int64_t>(each, at);
  }
  std::size_t at = sizeof(int64_t);
  seed_ = take<uint64_t>(all.front(), at);
  all_rows_ = sum;
  step.start(sum);
  step.seed().set(seed_);
}

void Runner::receive(const TrainPlan& plan) {
  for (const auto& [from, bundles] : plan.incoming) {
    auto& receiver = receivers_[from];
    if (!receiver) {
      receiver = std::make_unique<Receiver>(*world_, *transport_,
                                            layout_.world_rank(from), tags_);
    }
    std::vector<MessageId> ids;
    for (const MessageEdges& each : bundles) ids.push_back(id_of(each.back()));
    receiver->expect(
        std::move(ids),
        [this, list = &bundles, k = std::size_t{0}](
            const Message& message, std::vector<at::Tensor> tensors,
            Receiver::Time began) mutable {
          const MessageEdges& edges = (*list)[k++];
          record(edges.back(), message, began);
          arrive(edges, message, std::move(tensors));
        });
  }
}

MessageId Runner::id_of(const StageEdge& edge) const {
  MessageId id;
  id.step = number_;
  id.schedule = checksum_;
  id.direction = edge.backward ? Direction::kBackward : Direction::kForward;
  id.from_stage = static_cast<int32_t>(edge.from);
  id.to_stage = static_cast<int32_t>(edge.to);
  id.skip = static_cast<int32_t>(edge.link);
  id.microbatch = static_cast<int32_t>(edge.microbatch);
  return id;
}

void Runner::send(std::vector<StageOutput> all, const Event& made) {
  // A message for each rank, as route() predicts it.
  struct Bundled {
    StageEdge edge;  // of the last part
    Message message;
    std::vector<Activation> content;
  };
  std::map<int, Bundled> by_rank;
  for (StageOutput& each : all) {
    if (!each.edge.backward && each.edge.link < 0) {
      std::lock_guard<std::mutex> lock(widths_mutex_);
      widths_[{each.edge.from, each.edge.microbatch}] = each.content.size();
    }
    Bundled& bundled = by_rank[layout_.rank_of_stage[each.edge.to]];
    bundled.edge = each.edge;
    bundled.message.id = id_of(each.edge);
    bundled.message.value_kind = static_cast<uint8_t>(each.kind);
    bundled.message.rows = rows_[each.edge.microbatch];
    if (each.edge.link >= 0) ++bundled.message.skips;
    for (Activation& crossing : each.content) {
      bundled.content.push_back(std::move(crossing));
    }
  }
  for (auto& [to, bundled] : by_rank) {
    bundled.message.total_rows = all_rows_;
    bundled.message.seed = seed_;
    auto& sender = senders_[to];
    if (!sender) {
      sender = std::make_unique<Sender>(*world_, *transport_,
                                        layout_.world_rank(to), tags_);
    }
    Sender::Sent sent;
    if (recording_) {
      sent = [this, edge = bundled.edge,
              handed_over =
                  std::chrono::steady_clock::now()](const Message& message) {
        record(edge, message, handed_over);
      };
    }
    sender->send(std::move(bundled.message), std::move(bundled.content), made,
                 std::move(sent));
  }
}

void Runner::waits_for(int64_t stage) {
  const bool remote = 0 <= stage && stage < stages_.size() &&
                      !layout_.has(static_cast<int>(stage));
  world_->set_waits_for(
      remote ? layout_.world_rank(layout_.rank_of_stage[stage]) : -1);
}

void Runner::record(const StageEdge& edge, const Message& message,
                    Recording::Time start) {
  if (!recording_) return;
  const Action made_by = {
      static_cast<int>(edge.from),
      edge.backward ? ActionKind::kBackward : ActionKind::kForward,
      static_cast<int>(edge.microbatch)};
  double bytes = 0;
  for (const TensorSpec& spec : message.tensors) {
    bytes += static_cast<double>(spec.bytes());
  }
  recording_->message(made_by, layout_.rank_of_stage[edge.from],
                      layout_.rank_of_stage[edge.to], bytes, start,
                      std::chrono::steady_clock::now());
}

void Runner::arrive(const MessageEdges& edges, const Message& message,
                    std::vector<at::Tensor> tensors) {
  const std::size_t skips =
      edges.back().link < 0 ? edges.size() - 1 : edges.size();
  TORCH_CHECK(message.skips == skips, "received ", message.id.to_string(),
              " with ", message.skips, " skip tensors, but expected ", skips,
              "; give all ranks the same model");
  if (edges.back().link < 0 && edges.back().backward) {
    const std::size_t gradients = tensors.size() - skips;
    const std::size_t sent = width_of(edges.back().to, edges.back().microbatch);
    TORCH_CHECK(gradients == sent, "received ", message.id.to_string(),
                " with ", gradients, " gradients for the ", sent,
                " tensors that went there; run the same gpipe on all ranks");
  }
  auto tensor = tensors.begin();
  auto spec = message.tensors.begin();
  for (const StageEdge& each : edges) {
    std::vector<Activation> content;
    const auto end = each.link < 0 ? tensors.end() : tensor + 1;
    for (; tensor != end; ++tensor, ++spec) {
      content.push_back(
          {std::move(*tensor), spec->requires_grad, spec->shared});
    }
    if (each.link < 0 && !each.backward && !layout_.has_first()) {
      rows_[each.microbatch] = message.rows;
      all_rows_ = message.total_rows;
      seed_ = message.seed;
      step_->seed().set(message.seed);
      step_->set_rows(each.microbatch, message.rows, message.total_rows);
    }
    step_->pass().deliver(each, static_cast<Value::Kind>(message.value_kind),
                          std::move(content), Event());
  }
  executor_.notify(0);
}

std::size_t Runner::width_of(int64_t stage, int64_t microbatch) {
  std::lock_guard<std::mutex> lock(widths_mutex_);
  const auto found = widths_.find({stage, microbatch});
  return found == widths_.end() ? 0 : found->second;
}

void Runner::flush() {
  for (auto& [from, receiver] : receivers_) receiver->flush();
  for (auto& [to, sender] : senders_) sender->flush();
}

void Runner::end_together(const TrainStep& step, StepResult& result) {
  Ending mine;
  mine.drew = step.drew();
  mine.replica = layout_.replica;
  for (const at::Tensor& each : result.losses) {
    mine.type = each.scalar_type();
    mine.losses.push_back(each.item<double>());
  }
  if (!result.losses.empty()) mine.weights = step.weights();

  const auto all =
      all_gather(*world_, tags_.words, mine.encode(), "the end of a step");
  bool drew = false;
  at::Tensor mean;
  const c10::AutoGradMode no_graph(false);
  for (const std::string& bytes : all) {
    const Ending ending = Ending::decode(bytes);
    drew = drew || ending.drew;
    if (ending.losses.empty()) continue;
    const bool own = ending.replica == layout_.replica;
    at::Tensor sum;
    for (std::size_t i = 0; i < ending.losses.size(); ++i) {
      const at::Tensor value =
          at::scalar_tensor(ending.losses[i], at::TensorOptions(ending.type));
      const at::Tensor part = value * ending.weights[i];
      sum = sum.defined() ? sum + part : part;
      if (own && !layout_.has_last()) result.losses.push_back(value);
    }
    mean = mean.defined() ? mean + sum : sum;
  }
  if (mean.defined()) {
    result.loss = result.loss.defined() ? mean.to(result.loss.device()) : mean;
  }
  // One process would have drawn the seed from the default generator, too.
  if (drew) StepSeed::draw();
}

void Runner::begin_sums(const TrainStep& step) {
  if (!sums_ || !step.with_backward()) return;
  // Backwards complete gradients in this order, if ranks run stages in order.
  std::vector<ReplicaSums::Parameter> parameters;
  std::map<at::TensorImpl*, int> shares;  // number of stages that have it
  for (auto part = stages_.partitions.rbegin();
       part != stages_.partitions.rend(); ++part) {
    std::set<at::TensorImpl*> seen;
    for (auto layer = part->layers.rbegin(); layer != part->layers.rend();
         ++layer) {
      if (part->remote) break;
      auto tensors = layer->module.ptr()->parameters();
      for (auto each = tensors.rbegin(); each != tensors.rend(); ++each) {
        if (!each->requires_grad()) continue;
        if (!seen.insert(each->unsafeGetTensorImpl()).second) continue;
        ++shares[each->unsafeGetTensorImpl()];
        parameters.push_back({part->index, std::move(*each)});
      }
    }
  }
  // Parameters of several stages are added up over these stages first, at the
  // end.
  parameters.erase(
      std::remove_if(parameters.begin(), parameters.end(),
                     [&](const ReplicaSums::Parameter& each) {
                       return shares[each.tensor.unsafeGetTensorImpl()] > 1;
                     }),
      parameters.end());
  sums_->begin(std::move(parameters));
}

void Runner::complete(int64_t, const at::Tensor& leaf, at::Tensor& grad,
                      const Event& made) {
  sums_->give(leaf, grad, made);
}

void Runner::add_up(TrainStep& step) {
  if (!sums_ || !step.with_backward()) return;
  std::map<at::TensorImpl*, Summand> sums;
  for (Summand& each : sums_->finish()) {
    sums.emplace(each.like.unsafeGetTensorImpl(), std::move(each));
  }
  std::vector<TrainStep::LeafGrad>& grads = step.leaf_grads();
  std::vector<TrainStep::LeafGrad*> left;
  std::vector<Summand> rest;
  for (TrainStep::LeafGrad& each : grads) {
    const auto found = sums.find(each.leaf.unsafeGetTensorImpl());
    // A stage may have captured a parameter of another stage.
    if (each.shared && found != sums.end()) {
      TORCH_CHECK(!found->second.grad.defined(), "a parameter of partition ",
                  each.partition, " is used by several partitions of rank ",
                  layout_.rank,
                  " in this replica, but by one in another; give all replicas "
                  "the same layers");
      sums.erase(found);
    }
    if (each.shared || found == sums.end()) {
      left.push_back(&each);
      rest.push_back({each.leaf, std::move(each.grad)});
      continue;
    }
    each.grad = std::move(found->second.grad);
    sums.erase(found);
  }
  all_reduce(*world_, *sums_transport_, layout_.same_stages(), tags_.words,
             rest);
  for (std::size_t k = 0; k < rest.size(); ++k) {
    left[k]->grad = std::move(rest[k].grad);
  }
  // Gradients that only other replicas have.
  for (auto& [impl, each] : sums) {
    if (each.grad.defined()) grads.push_back({each.like, each.grad});
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
    return gpipe::internal::clip_grad_norm(*world_, layout_.pipeline(),
                                           tags_.words, parameters, max_norm,
                                           norm_type);
  });
}

}  // namespace gpipe::internal
