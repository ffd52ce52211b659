#include "gpipe/distributed/runner/messages.h"

#include <c10/util/Exception.h>

#include <chrono>

namespace gpipe::internal {
namespace {

// Returns the outputs of an action, in the order in which StepPass sends
// them: skip tensors first.
std::vector<StageEdge> made_by(const Action& action, int64_t stages,
                               const std::vector<SkipRoute>& links) {
  std::vector<StageEdge> made;
  const int64_t j = action.stage, i = action.microbatch;
  const bool forward = action.kind == ActionKind::kForward;
  const bool backward = begins_backward(action.kind);
  if (!forward && !backward) return made;
  for (std::size_t k = 0; k < links.size(); ++k) {
    const SkipRoute& link = links[k];
    if ((forward ? link.from : link.to) != j) continue;
    made.push_back({backward, j, forward ? link.to : link.from,
                    static_cast<int64_t>(k), i});
  }
  const int64_t next = forward ? j + 1 : j - 1;
  if (next >= 0 && next < stages) made.push_back({backward, j, next, -1, i});
  return made;
}

}  // namespace

std::vector<MessageEdges> route(const Schedule& schedule,
                                const std::vector<int>& rank_of_stage,
                                const std::vector<SkipRoute>& links, int from,
                                int to) {
  std::vector<MessageEdges> bundles;
  for (const Action& action : schedule.ranks[from]) {
    MessageEdges edges;
    for (const StageEdge& each :
         made_by(action, static_cast<int64_t>(rank_of_stage.size()), links)) {
      if (rank_of_stage[each.to] == to) edges.push_back(each);
    }
    if (!edges.empty()) bundles.push_back(std::move(edges));
  }
  return bundles;
}

StepMessages::StepMessages(Communicator& world,
                           std::shared_ptr<Transport> transport,
                           const RankLayout& layout, const Tags& tags,
                           Executor& executor)
    : world_(world),
      transport_(std::move(transport)),
      layout_(layout),
      tags_(tags),
      executor_(executor) {}

void StepMessages::begin(std::vector<int64_t> rows, int64_t all_rows,
                         uint64_t seed) {
  widths_.clear();
  rows_ = std::move(rows);
  all_rows_ = all_rows;
  seed_ = seed;
}

void StepMessages::connect(TrainStep& step, const IncomingMessages& incoming,
                           Recording* recording) {
  ++number_;
  if (layout_.has_first()) step.seed().set(seed_);
  step_ = &step;
  incoming_ = &incoming;
  recording_ = recording;
  for (const auto& [from, bundles] : incoming.by_sender) {
    Receiver& receiver =
        receivers_
            .try_emplace(from, world_, *transport_, executor_.devices().front(),
                         layout_.world_rank(from), tags_)
            .first->second;
    std::vector<MessageId> ids;
    for (const MessageEdges& each : bundles) ids.push_back(id_of(each.back()));
    receiver.expect(std::move(ids),
                    [this, list = &bundles, k = std::size_t{0}](
                        const Message& message, std::vector<at::Tensor> tensors,
                        const Receiver::Arrival& arrival) mutable {
                      const MessageEdges& edges = (*list)[k++];
                      record(edges.back(), message, arrival.began);
                      arrive(edges, message, std::move(tensors), arrival.ready);
                    });
  }
}

void StepMessages::disconnect() {
  if (!step_) return;
  for (auto& [from, receiver] : receivers_) receiver.flush();
  for (auto& [to, sender] : senders_) sender.flush();
  step_ = nullptr;
  recording_ = nullptr;
}

void StepMessages::rethrow() const {
  for (auto& [from, receiver] : receivers_) receiver.rethrow();
  for (auto& [to, sender] : senders_) sender.rethrow();
}

MessageId StepMessages::id_of(const StageEdge& edge) const {
  MessageId id;
  id.step = number_;
  id.schedule = incoming_->schedule;
  id.direction = edge.backward ? Direction::kBackward : Direction::kForward;
  id.from_stage = static_cast<int32_t>(edge.from);
  id.to_stage = static_cast<int32_t>(edge.to);
  id.skip = static_cast<int32_t>(edge.link);
  id.microbatch = static_cast<int32_t>(edge.microbatch);
  return id;
}

void StepMessages::send(std::vector<StageOutput> all, const Event& made) {
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
    Sender::Sent sent;
    if (recording_) {
      sent = [this, edge = bundled.edge,
              handed_over =
                  std::chrono::steady_clock::now()](const Message& message) {
        record(edge, message, handed_over);
      };
    }
    Sender& sender =
        senders_
            .try_emplace(to, world_, *transport_, layout_.world_rank(to), tags_)
            .first->second;
    sender.send(std::move(bundled.message), std::move(bundled.content), made,
                std::move(sent));
  }
}

void StepMessages::record(const StageEdge& edge, const Message& message,
                          Recording::Time start) {
  if (!recording_) return;
  const Action made_by = {
      static_cast<int>(edge.from),
      edge.backward ? ActionKind::kBackward : ActionKind::kForward,
      static_cast<int>(edge.microbatch)};
  double bytes = 0;
  for (const TensorSpec& spec : message.tensors) {
    bytes += static_cast<double>(spec.sent_bytes());
  }
  recording_->message(made_by, layout_.rank_of_stage[edge.from],
                      layout_.rank_of_stage[edge.to], bytes, start,
                      std::chrono::steady_clock::now());
}

void StepMessages::arrive(const MessageEdges& edges, const Message& message,
                          std::vector<at::Tensor> tensors, const Event& ready) {
  const std::size_t skips =
      edges.back().link < 0 ? edges.size() - 1 : edges.size();
  TORCH_CHECK(message.skips == skips, "received ", message.id.to_string(),
              " with ", message.skips, " skip tensors, but expected ", skips,
              "; give all ranks the same model");
  if (edges.back().link < 0 && edges.back().backward) {
    const std::size_t gradients = tensors.size() - skips;
    std::size_t sent = 0;  // of the output
    {
      std::lock_guard<std::mutex> lock(widths_mutex_);
      sent = widths_[{edges.back().to, edges.back().microbatch}];
    }
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
      content.push_back({std::move(*tensor), spec->requires_grad, spec->shared,
                         spec->unsplit});
    }
    if (each.link < 0 && !each.backward && !layout_.has_first()) {
      rows_[each.microbatch] = message.rows;
      all_rows_ = message.total_rows;
      seed_ = message.seed;
      step_->seed().set(message.seed);
      step_->set_rows(each.microbatch, message.rows, message.total_rows);
    }
    step_->pass().deliver(each, static_cast<Value::Kind>(message.value_kind),
                          std::move(content), ready);
  }
  executor_.notify(0);
}

}  // namespace gpipe::internal
