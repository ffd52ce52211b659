#include "gpipe/distributed/runner/runner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <numeric>
#include <set>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/distributed/runner/norms.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/distributed/world/topology.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/operators/random.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"

namespace gpipe::internal {

void ForeignParameters::add(std::string name, int rank,
                            const at::Tensor& parameter) {
  if (!parameter.defined()) return;
  all_.emplace(
      parameter.unsafeGetTensorImpl(),
      Foreign{
          std::move(name), rank,
          c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
              parameter.getIntrusivePtr())});
}

void ForeignParameters::check(const std::vector<SharedLeaf>& leaves) const {
  for (const SharedLeaf& leaf : leaves) {
    const auto found = all_.find(leaf.tensor.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(
        found == all_.end(), "a layer of partition ", leaf.places.front().first,
        " has captured parameter '", found->second.name,
        "' of a layer on rank ", found->second.rank,
        ". The layer has its own copy of it: the parameter would lose this "
        "part of its gradient, and the copy would never be updated; pass it "
        "as a skip tensor (gpipe/skip.h), or choose a balance that puts both "
        "layers on one rank");
  }
}

namespace {

bool has_tensors(const Value& value) {
  const auto tensors = value.tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& each) { return each.defined(); });
}

}  // namespace

// The messages and the sums have a transport each, because they run at the same
// time.
Runner::Runner(std::shared_ptr<Communicator> world,
               std::vector<Partition> partitions, RankLayout layout,
               c10::Device device, int threads, Transfers transfers,
               ForeignParameters foreign, Unsplit unsplit, bool shard_optimizer,
               bool collective_sums)
    : world_(std::move(world)),
      layout_(std::move(layout)),
      tags_(world_->next_channel()),
      foreign_(std::move(foreign)),
      agreement_(*world_, layout_, tags_.words),
      stages_(std::move(partitions), layout_.rank_of_stage, std::move(unsplit)),
      executor_({device}, threads, /*one_at_a_time=*/false,
                /*other_workers=*/world_->size() - 1,
                /*first_rank=*/layout_.rank),
      messages_(*world_,
                make_transport(world_, device, transfers,
                               c10::str("pipeline ", tags_.payload)),
                layout_, tags_, executor_) {
  world_->connect_to(peers());
  all_gather(*world_, tags_.words, "", "making the pipeline");
  if (layout_.replicas > 1) {
    sums_transport_ = make_transport(world_, device, transfers,
                                     c10::str("sums ", tags_.sums));
    if (collective_sums && sums_transport_->has_collectives()) {
      sum_method_ = SumMethod::kCollective;
    }
    sums_.emplace(*world_, *sums_transport_, layout_.same_stages(), tags_.sums,
                  shard_optimizer ? SumShare::kOwnRows : SumShare::kAll,
                  kBucketBytes, sum_method_);
    const std::vector<OwnTensor> weights = own_tensors();
    if (shard_optimizer) {
      shards_.emplace(std::vector<at::Tensor>(), layout_.replicas,
                      layout_.replica);
      add_shards(weights);
    }
    copy_first(weights, own_tensors(/*buffers=*/true));
  }
  callback_ = world_->on_failure([this] { executor_.notify(0); });
}

std::vector<Runner::OwnTensor> Runner::own_tensors(bool buffers) const {
  std::vector<OwnTensor> all;
  std::unordered_map<const at::TensorImpl*, std::size_t> indices;
  for (const Partition& part : stages_.partitions) {
    if (part.remote) continue;
    for (const Layer& layer : part.layers) {
      const auto& module = *layer.module.ptr();
      for (const auto& each :
           buffers ? module.named_buffers() : module.named_parameters()) {
        const at::Tensor& tensor = each.value();
        if (!tensor.defined()) continue;
        const auto [entry, is_new] =
            indices.emplace(tensor.unsafeGetTensorImpl(), all.size());
        if (is_new) {
          all.push_back({layer.name + "." + each.key(), part.index, layer.index,
                         false, tensor});
        } else if (OwnTensor& first = all[entry->second];
                   first.stage != part.index) {
          first.is_shared = true;
        }
      }
    }
  }
  return all;
}

void Runner::add_shards(const std::vector<OwnTensor>& parameters) {
  if (!shards_) return;
  shards_->clear();
  for (const OwnTensor& each : parameters) {
    shards_->add(each.tensor, each.name);
  }
}

void Runner::copy_first(const std::vector<OwnTensor>& parameters,
                        const std::vector<OwnTensor>& buffers) {
  copied_.clear();
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const OwnTensor& each : parameters) {
    named.emplace_back(each.name, each.tensor);
    copied_.emplace_back(each.tensor.getIntrusivePtr());
  }
  for (const OwnTensor& each : buffers) {
    named.emplace_back(each.name, each.tensor);
  }
  sums_->reducer().copy_first(named);
}

// Neighbouring stages, both ends of skips, the same stages of other replicas,
// and the trees over the ranks of a pipeline and over the replicas.
std::vector<int> Runner::peers() const {
  std::set<int> peers;
  const auto& ranks = layout_.rank_of_stage;
  const auto link = [&](int from, int to) {
    if (from == layout_.rank) peers.insert(layout_.world_rank(to));
    if (to == layout_.rank) peers.insert(layout_.world_rank(from));
  };
  for (std::size_t s = 0; s + 1 < ranks.size(); ++s) {
    link(ranks[s], ranks[s + 1]);
  }
  for (const SkipRoute& skip : stages_.links) {
    link(ranks[skip.from], ranks[skip.to]);
  }
  for (const int r : tree_neighbours(layout_.rank, layout_.ranks)) {
    peers.insert(layout_.world_rank(r));
  }
  for (const int rank : layout_.same_stages()) peers.insert(rank);
  peers.erase(world_->rank());
  return {peers.begin(), peers.end()};
}

Runner::~Runner() { world_->forget(callback_); }

StepResult Runner::step(const StepArguments& given) {
  StepResult result = train(stages_, executor_, given, *this);
  if (result.timeline) result.timeline->first_rank = layout_.rank;
  return result;
}

void Runner::open() {
  world_->check();
  prepared_ = nullptr;
  agreement_.reset();
}

Runner::Prepared Runner::prepare(const Schedule& schedule,
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
  Schedule complete = with_checkpoint(schedule, checkpoint);
  const std::string text = to_csv(complete);
  IncomingMessages incoming{
      crc32c(text.data(), static_cast<int64_t>(text.size())), {}};
  for (int from = 0; from < layout_.ranks; ++from) {
    if (from == layout_.rank) continue;
    auto bundles = route(complete, layout_.rank_of_stage, stages_.links, from,
                         layout_.rank);
    if (!bundles.empty()) incoming.by_sender.emplace(from, std::move(bundles));
  }
  return {std::move(complete), std::move(incoming)};
}

const Schedule& Runner::checked_schedule(const Schedule& schedule,
                                         Checkpoint checkpoint) {
  prepared_ = &prepared_schedules_.get(
      schedule, checkpoint, [&] { return prepare(schedule, checkpoint); });
  return prepared_->schedule;
}

// Only the first ranks know the rows and the seed. Other ranks get both with
// their first messages. If the batch was already split, the targets count the
// rows, and only the last ranks know these.
std::optional<int64_t> Runner::begin(
    const StepArguments& given, const StepMode& mode,
    const std::function<TrainStep&()>& prepare) {
  const TrainStep* step = nullptr;
  StartReport mine;
  std::exception_ptr refusal;
  try {
    step = &prepare();
  } catch (...) {
    refusal = std::current_exception();
    mine.refused = true;
    mine.refusal = cause_of(refusal);
  }
  if (step) mine = start_report(*step, given, mode);
  // With a loss on some ranks only, the totals would be of others.
  const std::vector<StartReport> all = agreement_.begin(
      mine, refusal, prepared_ ? &prepared_->schedule : nullptr,
      given.loss ? "the beginning of a step" : "the beginning of forward()");

  int64_t sum = 0;
  // What ranks without the target take for the sum: rows of the input.
  std::optional<int64_t> of_input;
  for (int replica = 0; replica < layout_.replicas; ++replica) {
    const StartReport* const of = &all[replica * layout_.ranks];
    const StartReport& first = of[layout_.rank_of_stage.front()];
    const StartReport& last = of[layout_.rank_of_stage.back()];
    const bool by_target = first.split && last.has_loss;
    // A target without tensors has no rows.
    sum += std::max((by_target ? last : first).rows, int64_t{0});
    if (by_target && replica == layout_.replica) of_input = first.rows;
  }
  copies_ = std::ranges::any_of(layout_.same_stages(), [&](int member) {
    return all[member].has_new_parameters;
  });
  if (layout_.has_first()) {
    const StartReport& first = all[layout_.same_stages().front()];
    // before() numbers the micro-batches of all replicas only if each replica
    // has as many. Other ones of evaluation draw from a seed of their replica.
    const bool numbered = prepared_->incoming.schedule == first.schedule;
    const int64_t all_rows = layout_.has_last() ? sum : of_input.value_or(sum);
    messages_.begin(step->rows(), all_rows,
                    numbered
                        ? first.seed
                        : first.seed + static_cast<uint64_t>(layout_.replica));
    return all_rows;
  }
  messages_.begin(std::vector<int64_t>(step->microbatches()), 0, 0);
  if (layout_.has_last() && given.loss && given.target.split()) return sum;
  return std::nullopt;
}

StartReport Runner::start_report(const TrainStep& step,
                                 const StepArguments& given,
                                 const StepMode& mode) const {
  StartReport mine;
  mine.schedule = prepared_->incoming.schedule;
  mine.with_backward = step.with_backward();
  mine.training = mode.training;
  mine.seed = StepSeed::peek();
  mine.has_loss = layout_.has_last() && given.loss;
  mine.split = layout_.has_first() ? given.input.split()
                                   : mine.has_loss && given.target.split();
  if (layout_.has_first() ||
      (mine.has_loss && (mine.split || has_tensors(given.target.whole())))) {
    mine.rows =
        std::accumulate(step.rows().begin(), step.rows().end(), int64_t{0});
  }
  mine.has_new_parameters =
      sums_ && mine.with_backward &&
      !std::ranges::equal(
          own_tensors(), copied_, [](const OwnTensor& a, const WeakTensor& b) {
            return a.tensor.unsafeGetTensorImpl() == b._unsafe_get_target();
          });
  return mine;
}

void Runner::connect(TrainStep& step, Recording* recording) {
  recording_ = recording;
  begin_sums(step);
  messages_.connect(step, prepared_->incoming, recording);
}

void Runner::begin_sums(const TrainStep& step) {
  if (!sums_ || !step.with_backward()) return;
  // Backwards complete gradients in this order, if ranks run stages in order.
  std::vector<Summand> parameters;
  auto own = own_tensors();
  // Layers have registered or replaced parameters. If the values are random,
  // each replica has drawn its own.
  if (copies_) copy_first(own);
  for (auto each = own.rbegin(); each != own.rend(); ++each) {
    // Parameters of several stages are added up over these stages first, at the
    // end.
    if (each->is_shared || !each->tensor.requires_grad()) continue;
    parameters.push_back({std::move(each->tensor), {}, std::move(each->name)});
  }
  sums_->begin(std::move(parameters),
               std::ranges::count(layout_.rank_of_stage, layout_.rank));
}

void Runner::add_up(TrainStep& step) {
  foreign_.check(step.leaves());
  if (!sums_ || !step.with_backward()) return;
  std::map<at::TensorImpl*, Summand> sums;
  for (Summand& each : sums_->finish()) {
    sums.emplace(each.like.unsafeGetTensorImpl(), std::move(each));
  }
  for (const auto& [start, end, bytes] : sums_->times()) {
    if (!recording_) break;
    recording_->gradient_sum(0, static_cast<double>(bytes), start, end);
  }
  const std::vector<OwnTensor> own = own_tensors();
  add_shards(own);
  std::vector<SharedLeaf>& grads = step.leaf_grads();
  const std::size_t leaves = grads.size();
  // The leaves that are not added up yet, with their indices.
  std::map<at::TensorImpl*, std::size_t> left;
  for (std::size_t k = 0; k < leaves; ++k) {
    SharedLeaf& each = grads[k];
    at::TensorImpl* const impl = each.tensor.unsafeGetTensorImpl();
    const auto found = sums.find(impl);
    // A stage may have captured a parameter of another stage.
    const bool shared = each.places.size() > 1;
    if (shared && found != sums.end()) {
      TORCH_CHECK(!found->second.grad.defined(), "a parameter of partition ",
                  each.places.front().first,
                  " is used by several partitions of rank ", layout_.rank,
                  " in this replica, but by one in another; give all replicas "
                  "the same layers");
      sums.erase(found);
    }
    if (shared || found == sums.end()) {
      left.emplace(impl, k);
      continue;
    }
    each.grad = std::move(found->second.grad);
    if (shards_) each.target = shards_->shard_of(each.tensor);
  }
  // Parameters in the order of the modules, which is the same on all replicas;
  // then captured tensors. The order of the leaves depends on the data.
  std::vector<Summand> rest;
  std::vector<std::size_t> indices;
  const auto add = [&](std::size_t k, const std::string& name) {
    SharedLeaf& leaf = grads[k];
    rest.push_back({leaf.tensor, std::move(leaf.grad), name});
    indices.push_back(k);
    left.erase(leaf.tensor.unsafeGetTensorImpl());
  };
  for (const OwnTensor& each : own) {
    at::TensorImpl* const impl = each.tensor.unsafeGetTensorImpl();
    if (const auto found = left.find(impl); found != left.end()) {
      add(found->second, each.name);
    } else if (sums.count(impl) == 0 && each.tensor.requires_grad()) {
      // Not used here, but another replica may have a gradient.
      grads.emplace_back().tensor = each.tensor;
      add(grads.size() - 1, each.name);
    }
  }
  for (std::size_t k = 0; k < leaves; ++k) {
    if (left.count(grads[k].tensor.unsafeGetTensorImpl()) > 0) add(k, "");
  }
  all_reduce(*world_, *sums_transport_, layout_.same_stages(), tags_.words,
             rest, kBucketBytes, sum_method_);
  for (std::size_t k = 0; k < rest.size(); ++k) {
    SharedLeaf& leaf = grads[indices[k]];
    leaf.grad = std::move(rest[k].grad);
    if (!shards_ || !shards_->has(leaf.tensor)) continue;
    // All replicas have the whole sum.
    leaf.target = shards_->shard_of(leaf.tensor);
    leaf.grad = slice_of_member(leaf.grad, layout_.replicas, layout_.replica);
    // A view as .grad would keep the rows of the other replicas.
    if (leaf.grad.defined()) leaf.grad = leaf.grad.clone();
  }
  // Gradients that only other replicas have.
  for (auto& [impl, each] : sums) {
    if (!each.grad.defined()) continue;
    SharedLeaf& added = grads.emplace_back();
    added.tensor = each.like;
    added.grad = std::move(each.grad);
    if (shards_) added.target = shards_->shard_of(each.like);
  }
}

void Runner::confirm_division() {
  // A division may fail for want of memory. Then no rank may change `.grad`.
  all_gather(*world_, tags_.words, "", "dividing gradients by the weight");
}

void Runner::fail(bool locked) {
  if (locked && agreement_.is_refused()) return;
  // An exception of the schedule has a place.
  const auto failure = locked ? executor_.last_failure() : std::nullopt;
  // Reported before disconnect(), which would otherwise wait for messages that
  // never come.
  world_->fail(std::current_exception(),
               failure ? failure->place() : "outside of the schedule");
  // The messages and sums of this step have ended. Those that run now are of
  // another thread's step.
  if (!locked) return;
  // After the step, no thread may deliver to it.
  messages_.disconnect();
  if (sums_) sums_->stop();
  // If a sender's or receiver's thread has thrown, the exception here is only
  // a PeerError. rethrow() throws the original.
  messages_.rethrow();
}

void Runner::waits_for(int64_t stage) {
  const bool remote = 0 <= stage && stage < stages_.size() &&
                      !layout_.has(static_cast<int>(stage));
  world_->waits().set_own(
      remote ? layout_.world_rank(layout_.rank_of_stage[stage]) : -1);
}

std::unique_lock<StepMutex> Runner::enter() {
  auto running = executor_.enter();
  world_->check();
  return running;
}

int64_t Runner::from_first(const std::function<int64_t()>& number) {
  return world_->reporting_failure("the number of micro-batches", [&] {
    const std::string mine = pack(layout_.has_first() ? number() : int64_t{0});
    const auto all = all_gather(*world_, layout_.pipeline(), tags_.words, mine,
                                "the number of micro-batches");
    std::size_t at = 0;
    return take<int64_t>(all[layout_.rank_of_stage.front()], at);
  });
}

bool Runner::any(bool here) {
  const auto running = enter();
  return world_->reporting_failure("any()", [&] {
    const auto all =
        all_gather(*world_, tags_.words, here ? "1" : "0", "any()");
    return std::find(all.begin(), all.end(), "1") != all.end();
  });
}

double Runner::clip_grad_norm(double max_norm, double norm_type) {
  const auto running = enter();
  bool agreed = false;
  try {
    const std::vector<OwnTensor> parameters = own_tensors();
    add_shards(parameters);
    std::vector<std::pair<int64_t, at::Tensor>> own;
    for (const OwnTensor& each : parameters) {
      at::Tensor tensor =
          shards_ ? shards_->shard_of(each.tensor) : each.tensor;
      if (tensor.defined()) own.emplace_back(each.layer, std::move(tensor));
    }
    // With shards, each rank of each replica has a part of the vector.
    const std::vector<int> members =
        shards_ ? world_->all_ranks() : layout_.pipeline();
    return gpipe::internal::clip_grad_norm(*world_, members, tags_.words, own,
                                           max_norm, norm_type,
                                           shards_.has_value(), agreed);
  } catch (...) {
    if (!agreed) world_->fail(std::current_exception(), "clip_grad_norm_()");
    throw;
  }
}

std::optional<std::vector<at::Tensor>> Runner::own_shards() {
  if (!shards_) return std::nullopt;
  const auto running = executor_.enter();
  add_shards(own_tensors());
  return shards_->own();
}

void Runner::share_parameters() {
  if (!shards_) return;
  const auto running = enter();
  world_->reporting_failure("share_parameters()", [&] {
    add_shards(own_tensors());
    shards_->spread(sums_->reducer());
  });
}

void Runner::zero_shard_grads(bool set_to_none) {
  if (!shards_) return;
  const auto running = executor_.enter();
  shards_->zero_grad(set_to_none);
}

}  // namespace gpipe::internal
