#include "gpipe/distributed/channel/channel.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "gpipe/base/devices.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/runtime/device/memory_kind.h"
#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::internal {
namespace {

// The number of messages that are remembered. When a program with ever new
// schedules reaches it, both sides forget all after the same message.
constexpr std::size_t kMost = 1 << 16;

}  // namespace

const ShapePrediction::Specs* ShapePrediction::predict(
    MessageId message) const {
  message.step = 0;
  const auto found = past_.find(message);
  if (found == past_.end() || !found->second.twice) return nullptr;
  return &found->second.specs;
}

void ShapePrediction::observe(MessageId message, const Specs& specs) {
  message.step = 0;
  const auto found = past_.find(message);
  if (found != past_.end()) {
    Past& past = found->second;
    past.twice = past.specs == specs;
    if (!past.twice) past.specs = specs;
    return;
  }
  if (past_.size() == kMost) past_.clear();
  past_.emplace(message, Past{specs, false});
}

ChannelEnd::ChannelEnd(Communicator& world, Transport& transport, int peer,
                       Tags tags)
    : world_(world),
      transport_(transport),
      peer_(peer),
      tags_(tags),
      stream_(transport.device()) {}

void ChannelEnd::rethrow() const {
  if (thrown_) std::rethrow_exception(thrown_);
}

void ChannelEnd::guard(const MessageId& message,
                       const std::function<void()>& part) {
  try {
    part();
  } catch (...) {
    if (world_.failure()) return;
    thrown_ = std::current_exception();
    world_.fail(thrown_, message.to_string());
  }
}

Sender::Sender(Communicator& world, Transport& transport, int to, Tags tags)
    : ChannelEnd(world, transport, to, tags),
      copier_(transport.device()),
      worker_([] {}) {}

void Sender::send(Message head, std::vector<Activation> content, Event made,
                  Sent sent) {
  worker_.post([this, head = std::move(head), content = std::move(content),
                made = std::move(made), sent = std::move(sent)]() mutable {
    if (world_.failure()) return;
    const MessageId id = head.id;
    guard(id, [&] {
      transmit(head, std::move(content), made);
      if (sent) sent(head);
    });
  });
}

TensorSpec Sender::prepare(Activation& activation, const Event& made,
                           std::vector<at::Tensor>& payload) {
  const bool once =
      0 <= activation.unsplit && activation.unsplit <= kMaxUnsplit;
  const auto known = once ? unsplit_.find(activation.unsplit) : unsplit_.end();
  // The tensors of all micro-batches are aliases of one.
  const bool repeated = known != unsplit_.end() &&
                        activation.tensor.is_alias_of(known->second.tensor);
  TensorSpec spec;
  if (repeated) {
    spec = known->second.spec;
    spec.repeated = true;
    payload.push_back(at::empty({0}, at::kByte));
  } else {
    const at::Tensor tensor = copier_.to_device(activation.tensor, made);
    spec = spec_of(tensor, activation.requires_grad);
    if (once && spec.defined) {
      spec.unsplit = activation.unsplit;
      unsplit_[activation.unsplit] = {activation.tensor, spec};
    }
    payload.push_back(bytes_of(tensor));
  }
  activation.tensor = at::Tensor();
  spec.requires_grad = activation.requires_grad;
  spec.shared = spec.defined && activation.shared;
  return spec;
}

void Sender::transmit(Message& head, std::vector<Activation> content,
                      const Event& made) {
  const StreamScope scope(stream_.get());
  std::vector<at::Tensor> payload;
  fault_point("message-out", head.id.from_stage, head.id.microbatch);
  for (Activation& each : content) {
    head.tensors.push_back(prepare(each, made, payload));
  }
  const ShapePrediction::Specs* const predicted = predict(head.id);
  head.as_predicted = predicted && *predicted == head.tensors;
  const std::vector<uint8_t> encoded = encode(head);
  const auto size = static_cast<int64_t>(encoded.size());
  const at::Tensor header = at::empty({size}, at::kByte);
  std::memcpy(header.mutable_data_ptr(), encoded.data(), encoded.size());

  const Transport::Action action = [&] {
    return "sending " + head.id.to_string();
  };
  std::vector<Transport::Work> works;
  const auto post = [&](const at::Tensor& bytes, int tag) {
    if (bytes.numel() == 0) return;
    works.push_back(world_.send(bytes, peer_, tag, action));
  };
  const auto post_content = [&](const at::Tensor& overflow,
                                const ShapePrediction::Specs& specs,
                                const std::vector<at::Tensor>& tensors) {
    post(overflow, tags_.payload_of(overflow.numel(), at::kByte));
    for (std::size_t k = 0; k < specs.size(); ++k) {
      if (tensors[k].numel() == 0) continue;
      const int tag = tags_.payload_of(specs[k].bytes(), specs[k].type);
      works.push_back(transport_.send(tensors[k], peer_, tag, action));
    }
  };
  std::vector<at::Tensor> instead;
  at::Tensor overflow_instead;
  const auto post_header = [&] {
    post(header.narrow(0, 0, kHeaderBytes), tags_.header);
  };
  // The receiver waits for the header first. If its other receives are posted
  // already, all is there when it wakes.
  if (!head.as_predicted) post_header();
  if (predicted && !head.as_predicted) {
    // The prediction is wrong, but the receiver has posted receives for it.
    // Send zeros of the predicted sizes first.
    for (const TensorSpec& spec : *predicted) {
      instead.push_back(
          at::zeros({spec.sent_bytes()},
                    at::TensorOptions(at::kByte).device(transport_.device())));
    }
    overflow_instead = at::zeros({overflow_of(*predicted)}, at::kByte);
    post_content(overflow_instead, *predicted, instead);
  }
  post_content(header.narrow(0, kHeaderBytes, size - kHeaderBytes),
               head.tensors, payload);
  if (head.as_predicted) post_header();
  prediction_.observe(head.id, head.tensors);
  for (const auto& work : works) world_.wait(work, peer_, action);
}

namespace {

Transport::Action waiting_for(const MessageId& message) {
  return [&message] { return "waiting for " + message.to_string(); };
}

}  // namespace

Receiver::Receiver(Communicator& world, Transport& transport,
                   const c10::Device& device, int from, Tags tags)
    : ChannelEnd(world, transport, from, tags),
      device_(device),
      copy_stream_(transport.device().is_cpu() && has_streams(device)
                       ? std::make_optional<OwnedStream>(device)
                       : std::nullopt),
      worker_([] {}) {}

template <typename Check>
void Receiver::check_received(const MessageId& expected, Check check) {
  try {
    check();
  } catch (const c10::Error& error) {
    if (is_out_of_memory(error)) throw;
    world_.fail({Fault::kDisagree, peer_, world_.rank(), expected.to_string(),
                 error.what_without_backtrace()});
    world_.check();
  }
}

void Receiver::expect(std::vector<MessageId> messages, Deliver deliver) {
  if (messages.empty()) return;
  worker_.post(
      [this, messages = std::move(messages), deliver = std::move(deliver)] {
        std::optional<StreamScope> scope;
        Incoming next;
        Unsplit unsplit;
        for (std::size_t k = 0; k < messages.size() && !world_.failure(); ++k) {
          guard(messages[k], [&] {
            if (k == 0) {
              scope.emplace(stream_.get(), Site::here());
              next = post(messages[k]);
            }
            std::vector<Posted> posted;
            const Message message = read(std::move(next), messages[k], posted);
            const Time began = std::chrono::steady_clock::now();
            if (k + 1 < messages.size()) next = post(messages[k + 1]);
            std::vector<at::Tensor> tensors;
            for (Posted& each : posted) {
              wait(each, messages[k]);
              tensors.push_back(std::move(each.tensor));
            }
            // An error of the copies is this rank's own.
            const Event ready = bring(tensors);
            check_received(messages[k], [&] {
              complete(message, unsplit, tensors);
              deliver(message, std::move(tensors), {began, ready});
            });
          });
        }
      });
}

Event Receiver::bring(std::vector<at::Tensor>& tensors) {
  if (!copy_stream_) return Event();
  const StreamScope scope(copy_stream_->get());
  for (at::Tensor& each : tensors) {
    if (!each.defined()) continue;
    each = each.to(device_, /*non_blocking=*/true);
    label_memory(each, MemoryKind::kBoundary);
  }
  return Event::record(device_);
}

void Receiver::complete(const Message& message, Unsplit& unsplit,
                        std::vector<at::Tensor>& tensors) {
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const TensorSpec& spec = message.tensors[n];
    if (spec.unsplit < 0) continue;
    if (!spec.repeated) {
      unsplit[spec.unsplit] = tensors[n];
      continue;
    }
    const auto known = unsplit.find(spec.unsplit);
    TORCH_CHECK(known != unsplit.end() && known->second.sizes() == spec.sizes &&
                    known->second.scalar_type() == spec.type,
                "received ", message.id.to_string(), " with tensor ", n,
                " as a repetition of shared tensor ", spec.unsplit,
                ", which was not received before in this step; run the same "
                "gpipe on all ranks");
    tensors[n] = known->second;
  }
}

void Receiver::wait(const Posted& posted, const MessageId& expected) {
  world_.wait(posted.work, peer_, waiting_for(expected));
}

Receiver::Incoming Receiver::post(const MessageId& expected) {
  Incoming incoming;
  const at::Tensor header = at::empty({kHeaderBytes}, at::kByte);
  incoming.header = {header, world_.receive(header, peer_, tags_.header,
                                            waiting_for(expected))};
  if (const ShapePrediction::Specs* const predicted = predict(expected)) {
    Content content;
    content.overflow = post_overflow(overflow_of(*predicted), expected);
    content.tensors = post_tensors(*predicted, expected);
    incoming.predicted = std::move(content);
  }
  return incoming;
}

Receiver::Posted Receiver::post_overflow(int64_t bytes,
                                         const MessageId& expected) {
  Posted overflow{at::empty({bytes}, at::kByte), nullptr};
  if (bytes > 0) {
    overflow.work = world_.receive(overflow.tensor, peer_,
                                   tags_.payload_of(bytes, at::kByte),
                                   waiting_for(expected));
  }
  return overflow;
}

std::vector<Receiver::Posted> Receiver::post_tensors(
    const ShapePrediction::Specs& specs, const MessageId& expected) {
  fault_point("message-in", expected.to_stage, expected.microbatch);
  std::vector<Posted> posted;
  for (const TensorSpec& spec : specs) {
    Posted& each = posted.emplace_back();
    if (spec.repeated) continue;
    each.tensor = empty_like_spec(spec, transport_.device(),
                                  /*pinned=*/copy_stream_.has_value());
    const at::Tensor bytes = bytes_of(each.tensor);
    if (bytes.numel() == 0) continue;
    each.work = transport_.receive(bytes, peer_,
                                   tags_.payload_of(spec.bytes(), spec.type),
                                   waiting_for(expected));
  }
  return posted;
}

Message Receiver::read(Incoming incoming, const MessageId& expected,
                       std::vector<Posted>& tensors) {
  wait(incoming.header, expected);
  at::Tensor& header = incoming.header.tensor;
  std::optional<Content>& predicted = incoming.predicted;
  int64_t more = 0;
  bool as_predicted = false;
  check_received(expected, [&] {
    more = overflow_bytes(header.const_data_ptr<uint8_t>());
    as_predicted = is_as_predicted(header.const_data_ptr<uint8_t>());
    TORCH_CHECK(!as_predicted ||
                    (predicted && predicted->overflow.tensor.numel() == more),
                "received a message that says it is as predicted, which it is "
                "not; run the same gpipe on all ranks");
  });
  Posted overflow;
  if (as_predicted) {
    overflow = predicted->overflow;
  } else {
    if (predicted) {
      // Receives the zeros that were sent for the wrong prediction.
      wait(predicted->overflow, expected);
      for (const Posted& each : predicted->tensors) wait(each, expected);
    }
    overflow = post_overflow(more, expected);
  }
  wait(overflow, expected);
  if (more > 0) header = at::cat({header, overflow.tensor});
  Message message;
  check_received(expected, [&] {
    message = decode(header.const_data_ptr<uint8_t>(), header.numel());
    check_expected(message.id, expected);
    TORCH_CHECK(
        !as_predicted || *predict(expected) == message.tensors,
        "received a message that says it is as predicted, but has other "
        "tensors; run the same gpipe on all ranks");
  });
  tensors = as_predicted ? std::move(predicted->tensors)
                         : post_tensors(message.tensors, expected);
  prediction_.observe(expected, message.tensors);
  return message;
}

}  // namespace gpipe::internal
