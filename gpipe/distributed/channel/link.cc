#include "gpipe/distributed/channel/link.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "gpipe/distributed/world/report.h"
#include "gpipe/runtime/device/fault_point.h"
#include "gpipe/runtime/run/notifier.h"

namespace gpipe::internal {
namespace {

// How often a thread polls before it sleeps: never, since polling would take a
// core from the workers.
constexpr int kSpins = 0;

std::string waiting_for(const MessageId& message) {
  return "waiting for " + message.to_string();
}

// Blocks until `worker` has done the tasks that it has now.
void wait_for(Worker& worker) {
  struct Done {
    std::atomic<bool> done{false};
    Notifier notifier;
  };
  auto done = std::make_shared<Done>();
  worker.post([done] {
    done->done = true;
    done->notifier.notify();
  });
  done->notifier.wait([&] { return done->done.load(); }, 0);
}

// Runs `part`. An exception is reported as a failure of this rank and kept in
// `thrown`, unless the world has failed before.
template <typename Part>
void guard(World& world, const MessageId& message, std::exception_ptr& thrown,
           Part part) {
  try {
    part();
  } catch (...) {
    if (world.failure()) return;
    thrown = std::current_exception();
    report_failure(world, thrown, message.to_string());
  }
}

}  // namespace

Sender::Sender(World& world, Transport& transport, int to, Tags tags)
    : world_(world),
      transport_(transport),
      to_(to),
      tags_(tags),
      copier_(transport.device()),
      stream_(new_stream(transport.device())),
      worker_([] {}, kSpins) {}

void Sender::send(Message head, std::vector<Activation> content, Event made,
                  Sent sent) {
  worker_.post([this, head = std::move(head), content = std::move(content),
                made = std::move(made), sent = std::move(sent)]() mutable {
    if (world_.failure()) return;
    const MessageId id = head.id;
    guard(world_, id, thrown_, [&] {
      transmit(head, std::move(content), made);
      if (sent) sent(head);
    });
  });
}

void Sender::transmit(Message& head, std::vector<Activation> content,
                      const Event& made) {
  const StreamScope scope(stream_);
  std::vector<at::Tensor> payload;
  fault_point("message-out", head.id.from_stage, head.id.microbatch);
  for (Activation& each : content) {
    const at::Tensor tensor = copier_.to_device(each.tensor, made);
    each.tensor = at::Tensor();
    head.tensors.push_back(spec_of(tensor, each.requires_grad));
    head.tensors.back().shared = each.shared;
    payload.push_back(bytes_of(tensor));
  }
  const ShapePrediction::Specs* const predicted = prediction_.of(head.id);
  head.as_predicted = predicted && *predicted == head.tensors;
  const std::vector<uint8_t> encoded = encode(head);
  const auto size = static_cast<int64_t>(encoded.size());
  const at::Tensor header = at::empty({size}, at::kByte);
  std::memcpy(header.mutable_data_ptr(), encoded.data(), encoded.size());

  const World::Action action = [&] { return "sending " + head.id.to_string(); };
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const auto post = [&](const at::Tensor& bytes, int tag) {
    if (bytes.numel() == 0) return;
    works.push_back(world_.send(bytes, to_, tag, action));
  };
  const auto post_content = [&](const at::Tensor& overflow,
                                const ShapePrediction::Specs& specs,
                                const std::vector<at::Tensor>& tensors) {
    post(overflow, tags_.payload_of(overflow.numel(), at::kByte));
    for (std::size_t k = 0; k < specs.size(); ++k) {
      if (tensors[k].numel() == 0) continue;
      const int tag = tags_.payload_of(specs[k].bytes(), specs[k].type);
      works.push_back(transport_.send(tensors[k], to_, tag, action));
    }
  };
  post(header.narrow(0, 0, kHeaderBytes), tags_.header);
  std::vector<at::Tensor> instead;
  at::Tensor overflow_instead;
  if (predicted && !head.as_predicted) {
    // The prediction is wrong, but the receiver has posted receives for it.
    // Send zeros of the predicted sizes first.
    for (const TensorSpec& spec : *predicted) {
      instead.push_back(
          at::zeros({spec.bytes()},
                    at::TensorOptions(at::kByte).device(transport_.device())));
    }
    overflow_instead = at::zeros({overflow_of(*predicted)}, at::kByte);
    post_content(overflow_instead, *predicted, instead);
  }
  post_content(header.narrow(0, kHeaderBytes, size - kHeaderBytes),
               head.tensors, payload);
  prediction_.learn(head.id, head.tensors);
  for (const auto& work : works) world_.wait(*work, to_, action);
}

void Sender::flush() { wait_for(worker_); }

void Sender::rethrow() {
  if (thrown_) std::rethrow_exception(thrown_);
}

Receiver::Receiver(World& world, Transport& transport, int from, Tags tags)
    : world_(world),
      transport_(transport),
      from_(from),
      tags_(tags),
      stream_(new_stream(transport.device())),
      worker_([] {}, kSpins) {}

template <typename Look>
void Receiver::look_at(const MessageId& expected, Look look) {
  try {
    look();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    world_.fail({Fault::kDisagree, from_, world_.rank(), expected.to_string(),
                 error.what_without_backtrace()});
    world_.check();
  }
}

void Receiver::expect(std::vector<MessageId> messages, Deliver deliver) {
  if (messages.empty()) return;
  worker_.post(
      [this, messages = std::move(messages), deliver = std::move(deliver)] {
        const StreamScope scope(stream_);
        Incoming next;
        for (std::size_t k = 0; k < messages.size() && !world_.failure(); ++k) {
          guard(world_, messages[k], thrown_, [&] {
            if (k == 0) next = post(messages[k]);
            std::vector<Posted> posted;
            const Message message = read(std::move(next), messages[k], posted);
            const Time began = std::chrono::steady_clock::now();
            if (k + 1 < messages.size()) next = post(messages[k + 1]);
            std::vector<at::Tensor> tensors;
            for (Posted& each : posted) {
              wait(each, messages[k]);
              tensors.push_back(std::move(each.tensor));
            }
            look_at(messages[k],
                    [&] { deliver(message, std::move(tensors), began); });
          });
        }
      });
}

void Receiver::wait(const Posted& posted, const MessageId& expected) {
  if (!posted.work) return;
  world_.wait(*posted.work, from_, [&] { return waiting_for(expected); });
}

Receiver::Incoming Receiver::post(const MessageId& expected) {
  Incoming incoming;
  const at::Tensor header = at::empty({kHeaderBytes}, at::kByte);
  incoming.header = {header, world_.receive(header, from_, tags_.header, [&] {
                       return waiting_for(expected);
                     })};
  if (const ShapePrediction::Specs* const predicted =
          prediction_.of(expected)) {
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
    overflow.work = world_.receive(overflow.tensor, from_,
                                   tags_.payload_of(bytes, at::kByte),
                                   [&] { return waiting_for(expected); });
  }
  return overflow;
}

std::vector<Receiver::Posted> Receiver::post_tensors(
    const ShapePrediction::Specs& specs, const MessageId& expected) {
  fault_point("message-in", expected.to_stage, expected.microbatch);
  std::vector<Posted> posted;
  for (const TensorSpec& spec : specs) {
    Posted& each = posted.emplace_back();
    each.tensor = empty_like_spec(spec, transport_.device());
    const at::Tensor bytes = bytes_of(each.tensor);
    if (bytes.numel() == 0) continue;
    each.work = transport_.receive(bytes, from_,
                                   tags_.payload_of(spec.bytes(), spec.type),
                                   [&] { return waiting_for(expected); });
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
  look_at(expected, [&] {
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
  look_at(expected, [&] {
    message = decode(header.const_data_ptr<uint8_t>(), header.numel());
    check_expected(message.id, expected);
    TORCH_CHECK(
        !as_predicted || *prediction_.of(expected) == message.tensors,
        "received a message that says it is as predicted, but has other "
        "tensors; run the same gpipe on all ranks");
  });
  tensors = as_predicted ? std::move(predicted->tensors)
                         : post_tensors(message.tensors, expected);
  prediction_.learn(expected, message.tensors);
  return message;
}

void Receiver::flush() { wait_for(worker_); }

void Receiver::rethrow() {
  if (thrown_) std::rethrow_exception(thrown_);
}

}  // namespace gpipe::internal
