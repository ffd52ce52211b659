#include "gpipe/distributed/runner.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/distributed/ending.h"
#include "gpipe/distributed/replicas/norms.h"
#include "gpipe/distributed/replicas/reduce.h"
#include "gpipe/distributed/world/all_gather.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/topology.h"
#include "gpipe/runtime/cell/random.h"
#include "gpipe/runtime/step/training.h"
#include "gpipe/schedule/placement.h"

namespace gpipe::internal {

Runner::Runner(std::shared_ptr<Communicator> world,
               std::vector<Partition> partitions, RankLayout layout,
               c10::Device device, int threads, Transfers transfers,
               ForeignParameters foreign, Unsplit unsplit, bool shard_optimizer)
    : world_(std::move(world)),
      layout_(std::move(layout)),
      tags_(world_->next_channel()),
      foreign_(std::move(foreign)),
      workers_(std::move(partitions), std::move(unsplit), layout_.rank_of_stage,
               {device}, threads,
               /*one_at_a_time=*/false, /*other_workers=*/world_->size() - 1),
      transport_(make_transport(world_, device, transfers,
                                c10::str("pipeline ", tags_.payload))),
      sums_transport_(make_transport(world_, device, transfers,
                                     c10::str("sums ", tags_.sums))) {
  world_->connect_to(peers());
  all_gather(*world_, tags_.words, "", "making the pipeline");
  if (layout_.replicas > 1) {
    sums_ = std::make_unique<ReplicaSums>(
        *world_, *sums_transport_, layout_.same_stages(), tags_.sums,
        shard_optimizer ? SumShare::kOwnRows : SumShare::kAll);
    if (shard_optimizer) {
      shards_.emplace(own_parameters(), layout_.replicas, layout_.replica);
    }
  }
  callback_ = world_->on_failure([this] { workers_.executor().notify(0); });
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
  for (const SkipLink& skip : workers_.stages().links) {
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
  StepResult result = train(workers_, given, *this);
  if (result.timeline) result.timeline->first_rank = layout_.rank;
  return result;
}

void Runner::open() {
  world_->check();
  workers_.set_failure(std::nullopt);
  plan_ = nullptr;
  agreed_ = false;
}

void Runner::connect(TrainStep& step, Recording* recording) {
  ++number_;
  if (layout_.has_first()) step.seed().set(seed_);
  step_ = &step;
  recording_ = recording;
  begin_sums(step);
  receive();
}

void Runner::disconnect() {
  for (auto& [from, receiver] : receivers_) receiver->flush();
  for (auto& [to, sender] : senders_) sender->flush();
  step_ = nullptr;
  recording_ = nullptr;
}

void Runner::fail(bool locked) {
  if (locked && agreed_) return;
  // An exception of the schedule has a place.
  const auto failure = locked ? workers_.last_failure() : std::nullopt;
  // Reported before disconnect(), which would otherwise wait for messages that
  // never come.
  world_->fail(std::current_exception(),
               failure ? failure->place() : "train_step()");
  // After the step, no thread may deliver to it.
  if (locked && step_) disconnect();
  if (sums_) sums_->stop();
  // If a sender's or receiver's thread has thrown, the exception here is only
  // a PeerError. rethrow() throws the original.
  for (auto& [from, receiver] : receivers_) receiver->rethrow();
  for (auto& [to, sender] : senders_) sender->rethrow();
}

LossTotals Runner::end(const TrainStep& step, StepResult& result) {
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
  agreed_ = true;  // all ranks have the same totals
  try {
    for (const Ending& ending : endings) totals.add(ending.totals);
    totals.check();
  } catch (...) {
    meet_before_throwing();
    throw;
  }
  agreed_ = false;
  if (layout_.has_last() && totals.sum.defined()) {
    result.loss = result.losses.back();  // for its device
  }
  return totals;
}

void Runner::confirm_division() {
  // A division may fail for want of memory. Then no rank may change `.grad`.
  all_gather(*world_, tags_.words, "", "dividing gradients by the weight");
}

std::unique_lock<std::mutex> Runner::enter() {
  auto running = workers_.enter();
  world_->check();
  return running;
}

int64_t Runner::from_first(const std::function<int64_t()>& number) {
  const auto running = enter();
  return world_->reporting_failure("the number of micro-batches", [&] {
    std::string mine;
    put(mine, layout_.has_first() ? number() : int64_t{0});
    const auto all = all_gather(*world_, layout_.pipeline(), tags_.words, mine,
                                "the number of micro-batches");
    std::size_t at = 0;
    return take<int64_t>(all[layout_.rank_of_stage.front()], at);
  });
}

bool Runner::any(bool here) {
  const auto running = enter();
  return world_->reporting_failure("any()", [&] {
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
  const auto running = enter();
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
      world_->fail(std::current_exception(), "clip_grad_norm_()");
    }
    throw;
  }
}

}  // namespace gpipe::internal
