#include "gpipe/distributed/channel/channel.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/error.h"
#include "gpipe/distributed/testing/two_worlds.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::error_of;
using testing::TwoWorlds;

MessageId message(int32_t microbatch, uint64_t step = 0) {
  return {step, 0x1234abcd, Direction::kForward, 0, 1, -1, microbatch};
}

ShapePrediction::Specs rows(int64_t count) {
  return {{true, false, at::kFloat, {count, 3}, {3, 1}}};
}

TEST(ShapePrediction, PredictsWhatCameTwiceInARow) {
  ShapePrediction prediction;
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0), rows(4));
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0, 1), rows(4));
  ASSERT_NE(prediction.predict(message(0, 2)), nullptr);
  EXPECT_EQ(*prediction.predict(message(0, 2)), rows(4));
}

TEST(ShapePrediction, BeginsAnewAfterSomethingElse) {
  ShapePrediction prediction;
  for (const int64_t count : {4, 4, 5}) {
    prediction.observe(message(0), rows(count));
  }
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0), rows(4));
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0), rows(4));
  EXPECT_NE(prediction.predict(message(0)), nullptr);
}

TEST(ShapePrediction, KeepsMessagesApartButForTheirStep) {
  ShapePrediction prediction;
  std::vector<MessageId> others(6, message(0));
  others[0].schedule = 1;
  others[1].direction = Direction::kBackward;
  others[2].from_stage = 1;
  others[3].to_stage = 2;
  others[4].skip = 0;
  others[5].microbatch = 1;
  prediction.observe(message(0, 7), rows(4));
  prediction.observe(message(0, 8), rows(4));
  for (const MessageId& other : others) {
    EXPECT_EQ(prediction.predict(other), nullptr) << other.to_string();
  }
  EXPECT_NE(prediction.predict(message(0, 9)), nullptr);
}

TEST(ShapePrediction, OfBothSidesIsTheSameHoweverManyMessagesThereAre) {
  // More messages than are remembered. The sender asks before each message.
  ShapePrediction sender, receiver;
  for (uint64_t step = 0; step < 2; ++step) {
    for (int32_t k = 0; k < 70000; ++k) {
      const auto* const predicted = sender.predict(message(k, step));
      const bool of_sender = predicted != nullptr;
      ASSERT_EQ(of_sender, receiver.predict(message(k, step)) != nullptr) << k;
      sender.observe(message(k, step), rows(1));
      receiver.observe(message(k, step), rows(1));
    }
  }
}

class FakeWork final : public c10d::Work {
 public:
  void complete() {
    {
      std::lock_guard<std::mutex> lock(state_mutex_);
      complete_ = true;
    }
    changed_.notify_all();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock<std::mutex> lock(state_mutex_);
    const bool in_time = changed_.wait_for(
        lock, timeout, [this] { return complete_ || aborted_; });
    if (in_time && !complete_) throw std::runtime_error("it was aborted");
    return complete_;
  }

  void abort() override {
    {
      std::lock_guard<std::mutex> lock(state_mutex_);
      aborted_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex state_mutex_;
  std::condition_variable changed_;
  bool complete_ = false, aborted_ = false;
};

// A transport in memory from rank 0 to rank 1. Expects that receives match
// sends in order, tag and length, as Transport demands.
class FakeTransport final : public Transport {
 public:
  explicit FakeTransport(bool early) : early_(early) {}

  c10::Device device() const override { return c10::Device(c10::kCPU); }
  bool takes_early_receives() const override { return early_; }
  Work send(const Tensor& bytes, int to, int tag,
            const Transport::Action&) override {
    EXPECT_EQ(to, 1);
    return add(sends_, bytes, tag);
  }
  Work receive(const Tensor& bytes, int from, int tag,
               const Transport::Action&) override {
    EXPECT_EQ(from, 0);
    return add(receives_, bytes, tag);
  }

 private:
  struct Transfer {
    Tensor bytes;
    int tag;
    c10::intrusive_ptr<FakeWork> work;
  };

  Work add(std::deque<Transfer>& transfers, const Tensor& bytes, int tag) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Transfer added{bytes, tag, c10::make_intrusive<FakeWork>()};
    transfers.push_back(added);
    if (!sends_.empty() && !receives_.empty()) {
      const Transfer &from = sends_.front(), &to = receives_.front();
      EXPECT_EQ(from.tag, to.tag);
      EXPECT_EQ(from.bytes.sizes(), to.bytes.sizes());
      to.bytes.copy_(from.bytes);
      from.work->complete();
      to.work->complete();
      sends_.pop_front();
      receives_.pop_front();
    }
    return added.work;
  }

  const bool early_;
  std::mutex mutex_;
  std::deque<Transfer> sends_, receives_;
};

// Messages from rank 0 to rank 1.
struct Channel {
  explicit Channel(bool early = true) : transport(early) {}

  TwoWorlds worlds;
  FakeTransport transport;
  Sender sender{*worlds.first, transport, 1, Tags(1)};
  Receiver receiver{*worlds.second, transport, transport.device(), 0, Tags(1)};
};

MessageId id_of(uint64_t step, int32_t microbatch) {
  return {step, 0x1234abcd, Direction::kForward, 0, 1, -1, microbatch};
}

Message head_of(const MessageId& id) {
  Message head;
  head.id = id;
  head.value_kind = static_cast<uint8_t>(Value::Kind::kVector);
  head.rows = 2;
  head.total_rows = 5;
  head.seed = 17;
  return head;
}

// Returns the failure of `world` as soon as there is one.
RankFailure failure_of(Communicator& world) {
  std::promise<void> failed;
  const int callback = world.on_failure([&] { failed.set_value(); });
  failed.get_future().wait();
  world.forget(callback);
  return *world.failure();
}

// Expects that both ranks learn of this failure, which rank 1 has reported.
void expect_failure(Channel& channel, Fault fault, int rank,
                    const std::string& what) {
  channel.sender.flush();
  channel.receiver.flush();
  for (Communicator* const world :
       {channel.worlds.first.get(), channel.worlds.second.get()}) {
    const RankFailure failure = failure_of(*world);
    EXPECT_EQ(failure.fault, fault);
    EXPECT_EQ(failure.rank, rank);
    EXPECT_EQ(failure.reporter, 1);
    EXPECT_NE(failure.what.find(what), std::string::npos) << failure.what;
    EXPECT_EQ(failure.action, id_of(0, 0).to_string());
  }
  channel.sender.rethrow();
}

TEST(Sender, SendsTensorsWithTheirSpecs) {
  Channel channel;
  const Tensor x = at::arange(6, at::kFloat).view({2, 3});
  const std::vector<Activation> content{
      {x.t(), true, false},
      {Tensor(), false, false},
      {x.slice(1, 0, 2), false, true},
      {at::empty({0, 3}, at::kLong), false, false}};
  Message received, sent;
  std::vector<Tensor> tensors;
  channel.receiver.expect({id_of(3, 1)},
                          [&](const Message& message, std::vector<Tensor> all,
                              const Receiver::Arrival&) {
                            received = message;
                            tensors = std::move(all);
                          });
  channel.sender.send(head_of(id_of(3, 1)), content, Event(),
                      [&](const Message& message) { sent = message; });
  channel.sender.flush();
  channel.receiver.flush();
  channel.sender.rethrow();
  channel.receiver.rethrow();

  EXPECT_EQ(received.id, id_of(3, 1));
  EXPECT_EQ(received.rows, 2);
  EXPECT_EQ(received.total_rows, 5);
  EXPECT_EQ(received.seed, 17u);
  EXPECT_EQ(received.tensors, sent.tensors);
  ASSERT_EQ(tensors.size(), content.size());
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const Tensor& expected = content[k].tensor;
    EXPECT_EQ(received.tensors[k].requires_grad, content[k].requires_grad);
    EXPECT_EQ(received.tensors[k].shared, content[k].shared);
    ASSERT_EQ(tensors[k].defined(), expected.defined());
    if (expected.defined()) {
      EXPECT_TRUE(at::equal(tensors[k], expected));
    }
  }
}

// The specs of 40 tensors do not fit into the header.
TEST(Sender, SendsWhatWasPredictedAndWhatWasNot) {
  const std::vector<int64_t> rows{4, 4, 4, 5, 4, 4, 4};
  for (const std::size_t count : {1, 40}) {
    Channel channel;
    std::vector<bool> as_predicted;
    for (std::size_t step = 0; step < rows.size(); ++step) {
      channel.receiver.expect(
          {id_of(step, 0), id_of(step, 1)},
          [&](const Message& message, std::vector<Tensor> tensors,
              const Receiver::Arrival&) {
            as_predicted.push_back(message.as_predicted);
            ASSERT_EQ(tensors.size(), count);
            for (std::size_t k = 0; k < count; ++k) {
              EXPECT_TRUE(
                  at::equal(tensors[k], at::full({rows[message.id.step], 3},
                                                 static_cast<double>(100 * k) +
                                                     message.id.microbatch)));
            }
          });
      for (const int32_t microbatch : {0, 1}) {
        std::vector<Activation> content;
        for (std::size_t k = 0; k < count; ++k) {
          content.push_back(
              {at::full({rows[step], 3},
                        static_cast<double>(100 * k) + microbatch),
               true, false});
        }
        channel.sender.send(head_of(id_of(step, microbatch)),
                            std::move(content), Event());
      }
      channel.receiver.flush();
    }
    channel.sender.flush();
    channel.sender.rethrow();
    channel.receiver.rethrow();
    EXPECT_EQ(as_predicted, (std::vector<bool>{false, false, false, false, true,
                                               true, false, false, false, false,
                                               false, false, true, true}));
  }
}

// A weight that all micro-batches share may be replaced between two steps.
TEST(Sender, KeepsNoUnsplitTensorAfterTheStep) {
  Channel channel;
  std::vector<bool> repeated;
  for (uint64_t step = 0; step < 2; ++step) {
    Tensor weight = at::full({5, 3}, static_cast<double>(step));
    channel.receiver.expect(
        {id_of(step, 0), id_of(step, 1)},
        [&](const Message& message, std::vector<Tensor> tensors,
            const Receiver::Arrival&) {
          repeated.push_back(message.tensors[0].repeated);
          EXPECT_TRUE(at::equal(tensors.at(0), weight));
        });
    for (const int32_t microbatch : {0, 1}) {
      Activation shared{weight, false, false};
      shared.unsplit = 0;
      channel.sender.send(head_of(id_of(step, microbatch)), {shared}, Event());
    }
    channel.receiver.flush();
    channel.sender.flush();
    EXPECT_EQ(weight.use_count(), 1u);
  }
  channel.sender.rethrow();
  channel.receiver.rethrow();
  EXPECT_EQ(repeated, (std::vector<bool>{false, true, false, true}));
}

// Otherwise a receive would occupy a device before its send is certain to come.
TEST(Sender, PredictsNothingForATransportThatTakesNoEarlyReceives) {
  Channel channel(/*early=*/false);
  std::vector<bool> as_predicted;
  for (uint64_t step = 0; step < 4; ++step) {
    channel.receiver.expect({id_of(step, 0)},
                            [&](const Message& message, std::vector<Tensor>,
                                const Receiver::Arrival&) {
                              as_predicted.push_back(message.as_predicted);
                            });
    channel.sender.send(head_of(id_of(step, 0)),
                        {{at::ones({4, 3}), true, false}}, Event());
    channel.receiver.flush();
  }
  channel.sender.flush();
  channel.sender.rethrow();
  channel.receiver.rethrow();
  EXPECT_EQ(as_predicted, std::vector<bool>(4, false));
}

TEST(Sender, FailsIfATensorCannotBeSent) {
  Channel channel;
  bool delivered = false;
  channel.receiver.expect({id_of(0, 0)},
                          [&](const Message&, std::vector<Tensor>,
                              const Receiver::Arrival&) { delivered = true; });
  channel.sender.send(head_of(id_of(0, 0)),
                      {{at::eye(3).to_sparse(), false, false}}, Event());
  channel.sender.flush();
  channel.receiver.flush();
  const std::string error = error_of([&] { channel.sender.rethrow(); });
  EXPECT_EQ(
      error.rfind("c10::Error: a tensor of layout Sparse cannot be sent", 0),
      0u)
      << error;
  channel.receiver.rethrow();
  EXPECT_FALSE(delivered);
  const RankFailure failure = failure_of(*channel.worlds.second);
  EXPECT_EQ(failure.fault, Fault::kFailed);
  EXPECT_EQ(failure.rank, 0);
}

TEST(Receiver, ReportsTheSenderOfAnotherMessage) {
  Channel channel;
  channel.receiver.expect({id_of(0, 0)}, [](const Message&, std::vector<Tensor>,
                                            const Receiver::Arrival&) {
    ADD_FAILURE() << "delivered";
  });
  channel.sender.send(head_of(id_of(0, 1)), {}, Event());
  expect_failure(channel, Fault::kDisagree, 0,
                 "received the output of stage 0 for micro-batch 1");
  channel.receiver.rethrow();
}

TEST(Receiver, ReportsWhoHasFailedIfDeliverThrows) {
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  struct Case {
    std::function<void()> thrower;
    Fault fault;
    int rank;
    std::string error;  // of rethrow()
  };
  for (const Case& each : std::vector<Case>{
           {[] { TORCH_CHECK(false, "the reason"); }, Fault::kDisagree, 0, ""},
           {[] { throw std::runtime_error("the reason"); }, Fault::kFailed, 1,
            "std::runtime_error: the reason"},
           {[&] { throw c10::OutOfMemoryError(here, "the reason"); },
            Fault::kFailed, 1, "c10::OutOfMemoryError: the reason"},
           {[] {
              TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: ",
                          "the reason");
            },
            Fault::kFailed, 1,
            "c10::Error: DefaultCPUAllocator: can't allocate memory: the "
            "reason"}}) {
    SCOPED_TRACE(each.error);
    Channel channel;
    channel.receiver.expect({id_of(0, 0), id_of(0, 1)},
                            [&](const Message& message, std::vector<Tensor>,
                                const Receiver::Arrival&) {
                              EXPECT_EQ(message.id.microbatch, 0);
                              each.thrower();
                            });
    for (const int32_t microbatch : {0, 1}) {
      channel.sender.send(head_of(id_of(0, microbatch)),
                          {{at::ones({2}), false, false}}, Event());
    }
    expect_failure(channel, each.fault, each.rank, "the reason");
    EXPECT_EQ(error_of([&] { channel.receiver.rethrow(); }), each.error);
  }
}

}  // namespace
}  // namespace gpipe::internal
