#include "gpipe/distributed/channel/sender.h"

#include <ATen/Functions.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "gpipe/distributed/channel/shape_prediction.h"
#include "gpipe/distributed/channel/tensor_spec.h"
#include "gpipe/distributed/channel/wire.h"
#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::internal {

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
  if (unsplit_step_ != head.id.step) unsplit_.clear();
  unsplit_step_ = head.id.step;
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

}  // namespace gpipe::internal
