// The messages of a step: which there are between two ranks, what leaves for
// other ranks, and what arrives.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gpipe/distributed/channel/channel.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/runner/layout.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/passes.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/layout.h"

namespace gpipe::internal {

// The parts of one message: all outputs of one action for stages of one rank.
// Skip tensors come first, in the order of `links`; the output for the
// neighbouring stage comes last.
using MessageEdges = std::vector<StageEdge>;

// Returns the messages that rank `from` sends to rank `to`, in the order of the
// actions of `from`. It depends on the schedule only, so both ranks know it,
// and the receiver knows which message comes next.
std::vector<MessageEdges> route(const Schedule& schedule,
                                const std::vector<int>& rank_of_stage,
                                const std::vector<SkipRoute>& links, int from,
                                int to);

// The messages of a schedule that arrive at this rank.
struct IncomingMessages {
  uint32_t schedule = 0;  // a checksum of the schedule's text
  std::map<int, std::vector<MessageEdges>> by_sender;  // ranks of the pipeline
};

// The senders and receivers of one rank, and what their messages say of the
// running step.
//
// Threads: calls run one after the other; the worker calls send() while a step
// is connected. A Receiver's thread writes values from other ranks before it
// delivers the tensors that the reader waits for.
class StepMessages {
 public:
  // `executor`: notified when a message has arrived.
  StepMessages(Communicator& world, std::shared_ptr<Transport> transport,
               const RankLayout& layout, const Tags& tags, Executor& executor);

  // Begins a step with the rows of each micro-batch and of all of them, and
  // with the seed of random numbers. A rank without the first stage learns them
  // from its first messages.
  void begin(std::vector<int64_t> rows, int64_t all_rows, uint64_t seed);

  // Begins to receive `incoming` for `step`. Both must live until disconnect().
  // `recording`: gets the messages; null if they are not recorded.
  void connect(TrainStep& step, const IncomingMessages& incoming,
               Recording* recording);
  // Ends connect(): blocks until all messages have left and arrived, or the
  // world has failed.
  void disconnect();
  // Throws the exception by which a sender or a receiver has failed, if any.
  void rethrow() const;

  // Sends outputs, which are complete after the event `made`.
  void send(std::vector<StageOutput> all, const Event& made);

 private:
  // Delivers the tensors of a message to the step. Runs on a Receiver's
  // thread. Throws c10::Error if they do not fit.
  void arrive(const MessageEdges& edges, const Message& message,
              std::vector<at::Tensor> tensors, const Event& ready);
  // Adds a message to the recording, if there is one, when it has arrived or
  // left.
  void record(const StageEdge& edge, const Message& message,
              Recording::Time start);
  MessageId id_of(const StageEdge& edge) const;

  Communicator& world_;
  const std::shared_ptr<Transport> transport_;
  const RankLayout& layout_;
  const Tags tags_;
  Executor& executor_;

  uint64_t number_ = 0;        // of the step
  TrainStep* step_ = nullptr;  // null unless connected
  const IncomingMessages* incoming_ = nullptr;
  Recording* recording_ = nullptr;
  std::atomic<uint64_t> seed_{0};
  std::vector<int64_t> rows_;  // by micro-batch
  std::atomic<int64_t> all_rows_{0};
  // How many tensors were sent to the next stage, by stage and micro-batch. As
  // many gradients must come back.
  std::mutex widths_mutex_;
  std::map<std::pair<int64_t, int64_t>, std::size_t> widths_;

  // By rank of the pipeline; made on first use. Declared last: their threads
  // must end first.
  std::map<int, Sender> senders_;
  std::map<int, Receiver> receivers_;
};

}  // namespace gpipe::internal
