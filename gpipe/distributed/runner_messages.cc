// The messages of a step: what leaves for other ranks, and what arrives.
#include <c10/util/Exception.h>

#include <chrono>
#include <utility>

#include "gpipe/distributed/route.h"
#include "gpipe/distributed/runner.h"

namespace gpipe::internal {

void Runner::receive() {
  for (const auto& [from, bundles] : plan_->incoming) {
    auto& receiver = receivers_[from];
    if (!receiver) {
      receiver = std::make_unique<Receiver>(
          *world_, *transport_, workers_.executor().devices().front(),
          layout_.world_rank(from), tags_);
    }
    std::vector<MessageId> ids;
    for (const MessageEdges& each : bundles) ids.push_back(id_of(each.back()));
    receiver->expect(
        std::move(ids),
        [this, list = &bundles, k = std::size_t{0}](
            const Message& message, std::vector<at::Tensor> tensors,
            const Receiver::Arrival& arrival) mutable {
          const MessageEdges& edges = (*list)[k++];
          record(edges.back(), message, arrival.began);
          arrive(edges, message, std::move(tensors), arrival.ready);
        });
  }
}

MessageId Runner::id_of(const StageEdge& edge) const {
  MessageId id;
  id.step = number_;
  id.schedule = plan_->checksum;
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
    Sender::Sent sent;
    if (recording_) {
      sent = [this, edge = bundled.edge,
              handed_over =
                  std::chrono::steady_clock::now()](const Message& message) {
        record(edge, message, handed_over);
      };
    }
    sender_to(to).send(std::move(bundled.message), std::move(bundled.content),
                       made, std::move(sent));
  }
}

Sender& Runner::sender_to(int rank) {
  auto& sender = senders_[rank];
  if (!sender) {
    sender = std::make_unique<Sender>(*world_, *transport_,
                                      layout_.world_rank(rank), tags_);
  }
  return *sender;
}

void Runner::waits_for(int64_t stage) {
  const bool remote = 0 <= stage && stage < workers_.stages().size() &&
                      !layout_.has(static_cast<int>(stage));
  world_->waits().set_own(
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
    bytes += static_cast<double>(spec.sent_bytes());
  }
  recording_->message(made_by, layout_.rank_of_stage[edge.from],
                      layout_.rank_of_stage[edge.to], bytes, start,
                      std::chrono::steady_clock::now());
}

void Runner::arrive(const MessageEdges& edges, const Message& message,
                    std::vector<at::Tensor> tensors, const Event& ready) {
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
  workers_.executor().notify(0);
}

std::size_t Runner::width_of(int64_t stage, int64_t microbatch) {
  std::lock_guard<std::mutex> lock(widths_mutex_);
  const auto found = widths_.find({stage, microbatch});
  return found == widths_.end() ? 0 : found->second;
}

}  // namespace gpipe::internal
