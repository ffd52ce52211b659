#include "gpipe/distributed/link.h"

#include <ATen/Functions.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "gpipe/distributed/throw.h"
#include "gpipe/runtime/bell.h"

namespace gpipe {
namespace {

// Looks before the thread falls asleep: none, since it would take a core from
// those who compute.
constexpr int kSpins = 0;

std::string waiting_for(const MessageId& message) {
  return "waiting for " + message.to_string();
}

// Waits for what a worker has been given so far.
void wait_for(Worker& worker) {
  struct Done {
    std::atomic<bool> done{false};
    Bell bell;
  };
  auto done = std::make_shared<Done>();
  worker.post([done] {
    done->done = true;
    done->bell.ring();
  });
  done->bell.wait([&] { return done->done.load(); }, 0);
}

// Runs a part of the traffic with `peer`; what it throws ends the step of all.
template <typename Part>
void guard(World& world, Fault fault, int at_fault, const MessageId& message,
           Part part) {
  try {
    part();
  } catch (...) {
    const auto cause = cause_of(std::current_exception());
    if (!cause) return;
    world.fail({fault, at_fault, world.rank(), message.to_string(), *cause});
  }
}

}  // namespace

Outlet::Outlet(World& world, int to, Tags tags)
    : world_(world),
      to_(to),
      tags_(tags),
      to_cpu_(c10::Device(c10::kCPU)),
      worker_([] {}, kSpins) {}

void Outlet::send(Message head, std::vector<Crossing> content, Moment made) {
  worker_.post([this, head = std::move(head), content = std::move(content),
                made = std::move(made)]() mutable {
    if (world_.failure()) return;
    const MessageId id = head.id;
    guard(world_, Fault::kFailed, world_.rank(), id,
          [&] { transmit(std::move(head), std::move(content), made); });
  });
}

void Outlet::transmit(Message head, std::vector<Crossing> content,
                      const Moment& made) {
  std::vector<at::Tensor> payload;
  for (Crossing& each : content) {
    const at::Tensor tensor = to_cpu_.bring(each.tensor, made);
    each.tensor = at::Tensor();
    head.tensors.push_back(spec_of(tensor, each.requires_grad));
    if (head.tensors.back().bytes() > 0) payload.push_back(bytes_of(tensor));
  }
  const std::vector<uint8_t> encoded = encode(head);
  const auto size = static_cast<int64_t>(encoded.size());
  const at::Tensor header = at::empty({size}, at::kByte);
  std::memcpy(header.mutable_data_ptr(), encoded.data(), encoded.size());

  const World::Action action = [&] { return "sending " + head.id.to_string(); };
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const auto post = [&](const at::Tensor& bytes, int tag) {
    works.push_back(world_.send(bytes, to_, tag, action));
  };
  post(header.narrow(0, 0, kHeaderBytes), tags_.header);
  if (const int64_t more = size - kHeaderBytes; more > 0) {
    post(header.narrow(0, kHeaderBytes, more),
         tags_.payload_of(more, at::kByte));
  }
  std::size_t sent = 0;
  for (const TensorSpec& spec : head.tensors) {
    if (spec.bytes() == 0) continue;
    post(payload[sent++], tags_.payload_of(spec.bytes(), spec.type));
  }
  for (const auto& work : works) world_.wait(*work, to_, action);
}

void Outlet::flush() { wait_for(worker_); }

Inlet::Inlet(World& world, int from, Tags tags)
    : world_(world), from_(from), tags_(tags), worker_([] {}, kSpins) {}

void Inlet::expect(std::vector<MessageId> messages, Deliver deliver) {
  if (messages.empty()) return;
  worker_.post(
      [this, messages = std::move(messages), deliver = std::move(deliver)] {
        Header next;
        for (std::size_t k = 0; k < messages.size() && !world_.failure(); ++k) {
          guard(world_, Fault::kDisagree, from_, messages[k], [&] {
            Header header = k == 0 ? post_header(messages[k]) : std::move(next);
            const Message message = read_header(std::move(header), messages[k]);
            // Waits already while this one's tensors come.
            if (k + 1 < messages.size()) next = post_header(messages[k + 1]);
            deliver(message, read_tensors(message));
          });
        }
      });
}

Inlet::WorkPtr Inlet::receive(const at::Tensor& bytes, int tag,
                              const MessageId& expected) {
  return world_.receive(bytes, from_, tag,
                        [&] { return waiting_for(expected); });
}

void Inlet::wait(c10d::Work& work, const MessageId& expected) {
  world_.wait(work, from_, [&] { return waiting_for(expected); });
}

Inlet::Header Inlet::post_header(const MessageId& expected) {
  Header header;
  header.bytes = at::empty({kHeaderBytes}, at::kByte);
  header.work = receive(header.bytes, tags_.header, expected);
  return header;
}

Message Inlet::read_header(Header header, const MessageId& expected) {
  wait(*header.work, expected);
  const int64_t more = overflow_bytes(header.bytes.const_data_ptr<uint8_t>());
  if (more > 0) {
    const at::Tensor rest = at::empty({more}, at::kByte);
    const int tag = tags_.payload_of(more, at::kByte);
    wait(*receive(rest, tag, expected), expected);
    header.bytes = at::cat({header.bytes, rest});
  }
  Message message =
      decode(header.bytes.const_data_ptr<uint8_t>(), header.bytes.numel());
  check_expected(message.id, expected);
  return message;
}

std::vector<at::Tensor> Inlet::read_tensors(const Message& message) {
  std::vector<at::Tensor> tensors;
  std::vector<WorkPtr> works;
  for (const TensorSpec& spec : message.tensors) {
    tensors.push_back(empty_like_spec(spec));
    if (spec.bytes() == 0) continue;
    const int tag = tags_.payload_of(spec.bytes(), spec.type);
    works.push_back(receive(bytes_of(tensors.back()), tag, message.id));
  }
  for (const WorkPtr& work : works) wait(*work, message.id);
  return tensors;
}

void Inlet::flush() { wait_for(worker_); }

}  // namespace gpipe
