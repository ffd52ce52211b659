// Messages between the ranks of a world: transports, tags, and the connections
// with the first failure.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "gpipe/distributed/error.h"
#include "gpipe/distributed/world/failure_detector.h"
#include "gpipe/distributed/world/rendezvous.h"
#include "gpipe/distributed/world_options.h"
#include "gpipe/runtime/device/origin.h"

namespace gpipe::internal {

// A transport between the memories of devices of one type, on different ranks.
//
// Threads: any thread may call. At most one thread at a time sends to a given
// rank, and at most one receives from it.
class Transport {
 public:
  // A transfer that has started; null if it is complete already.
  using Work = c10::intrusive_ptr<c10d::Work>;

  // A function that returns what this rank is doing, for error texts. It is
  // called only when an error text needs it, on any thread.
  using Action = std::function<std::string()>;

  virtual ~Transport() = default;

  // Returns the device where the bytes to send or to receive must be.
  virtual c10::Device device() const = 0;

  // Returns whether a receive may be posted before it is certain that its send
  // comes without further work of this rank. On a device it may not: the
  // receive occupies the device until the bytes are there, and this rank's work
  // may wait for the device. Both ends return the same.
  virtual bool takes_early_receives() const = 0;

  // send() starts to send `bytes` to rank `to`; receive() starts to receive
  // `bytes` from rank `from`. Both return the started work, which is complete
  // when Communicator::wait() has returned. Both may block until the other rank
  // makes its call, and until the transfer is complete (direct transfers).
  //
  // `bytes`: a uint8 tensor of one dimension on device(). It must live until
  // Communicator::wait() has returned. The transfer starts after the work that
  // this thread's current stream already has; after the wait, any stream may
  // use the bytes.
  //
  // Between two ranks and in one direction, receives must match sends in order,
  // tag and length. Throws PeerError if the connection is broken.
  virtual Work send(const at::Tensor& bytes, int to, int tag,
                    const Action& action) = 0;
  virtual Work receive(const at::Tensor& bytes, int from, int tag,
                       const Action& action) = 0;

  // A function that starts a collective operation in a group, on device().
  using Collective = std::function<Work(c10d::Backend& group)>;

  // Returns whether collective() may be called; all ranks return the same.
  virtual bool has_collectives() const { return false; }

  // Calls `post` with a group of `members` (ranks in ascending order, this one
  // among them), and blocks until its operation is complete. All members call
  // it, one thread of each. Any stream may use the result. Throws PeerError if
  // the world has failed.
  virtual void collective(const std::vector<int>& /*members*/,
                          const Collective& /*post*/,
                          const Action& /*action*/) {
    TORCH_INTERNAL_ASSERT(false, "this transport has no collectives");
  }
};

// The tags of one pipeline, different from all others in the world.
struct Tags {
  // `channel`: see Communicator::next_channel().
  explicit Tags(int channel)
      : header(4 * channel),
        payload(header + 1),
        words(header + 2),
        sums(header + 3) {}
  int header, payload;  // of messages: header and tensors
  int words;            // of texts at the beginning and the end of a step
  int sums;             // of sums of gradients over replicas, during a step

  // Returns the tag of a payload of `bytes` bytes with dtype `type`. A message
  // of another length than the receiver expects breaks the connection, and one
  // of another dtype would be misread. So the tag depends on length and dtype,
  // and a payload that was announced differently never arrives.
  int payload_of(int64_t bytes, at::ScalarType type) const;
};

// One rank's connections to the others, and the first failure of any rank. It
// is also the transport between the hosts. A World is its public face.
//
// Thread-safe.
class Communicator final : public Transport {
 public:
  // See World::connect() and ~World(). If the last owner lets go in a fork of
  // the process, or while a thread waits for a message, the object stays: the
  // connections are those of the parent, or of the waiting thread.
  static std::shared_ptr<Communicator> connect(const WorldOptions& options);
  ~Communicator() override;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  // Returns 0 ... size() - 1.
  std::vector<int> all_ranks() const;
  const WorldOptions& options() const { return options_; }
  // See World.
  std::optional<RankFailure> failure() const;
  void check() const;

  // Returns the store of this world. A blocking wait for a key blocks other
  // callers.
  c10d::Store& store() { return *meeting_.store; }

  // Returns which rank waits for which. If a wait times out, the last rank in
  // the chain of ranks that wait for each other is reported as failed.
  Waits& waits() { return detector_->waits(); }

  // Returns a new number for tags and keys. All ranks get the same numbers if
  // they call this in the same order.
  int next_channel() { return next_channel_++; }

  // Blocks until this rank is connected with `peers`. All of them call this
  // with this rank among their peers. Throws PeerError if the world has failed
  // or a connection cannot be made.
  void connect_to(const std::vector<int>& peers);

  // Transport, between CPUs.
  c10::Device device() const override { return c10::Device(c10::kCPU); }
  bool takes_early_receives() const override { return true; }
  Work send(const at::Tensor& bytes, int to, int tag,
            const Action& action) override;
  Work receive(const at::Tensor& bytes, int from, int tag,
               const Action& action) override;

  // Runs `post`, which starts a transfer with rank `peer`, and returns its
  // work. Errors of this rank pass as they are: those of its device, of its
  // memory, and of threads that cannot start. After another std::exception of
  // `post`, the connection to `peer` is broken: the world fails and PeerError
  // is thrown.
  Work begin(int peer, const Action& action, const std::function<Work()>& post);

  // Blocks until a send to or a receive from rank `peer` is complete. Errors of
  // this rank pass as in begin(). If the transfer fails by another one or takes
  // longer than the timeout, the world fails and PeerError is thrown. After a
  // broken connection, waits up to 1 s for the failure detector to learn the
  // cause.
  void wait(const Work& work, int peer, const Action& action);

  // Reports a failure. The first failure ends all waits and is sent to all
  // other ranks; later ones are ignored. Does not throw.
  void fail(RankFailure failure);
  // Reports that this rank has failed by `exception` in `action`. Does not
  // throw.
  void fail(const std::exception_ptr& exception, const std::string& action);

  // Returns the result of `part`. An exception of `part` is first reported by
  // fail() and then rethrown.
  template <typename Part>
  auto reporting_failure(const std::string& action, Part part) {
    try {
      return part();
    } catch (...) {
      fail(std::current_exception(), action);
      throw;
    }
  }

  // on_failure() registers `callback` and returns a number for forget(). It is
  // called once, when the world fails, on any thread; at once if the world has
  // failed already. It must not wait for anything of the world. forget()
  // removes it, and blocks while it runs.
  int on_failure(std::function<void()> callback);
  void forget(int callback);

 private:
  explicit Communicator(const WorldOptions& options);

  struct Waiting {
    Work work;
    int peer = 0;
    const Action* action = nullptr;  // of the waiting thread
  };

  bool must_stay() const;
  // Ends all waiting threads.
  void abort_all();
  // Throws the failure that the failure detector reports within a second; if it
  // reports none, one with the text `error`.
  void connection_broke(int peer, const Action& action,
                        const std::string& error);
  // Returns what this rank waits for from `rank`, or "". Call it with the
  // mutex.
  std::string waiting_for(int rank) const;

  const Origin origin_;
  const WorldOptions options_;
  const int exceptions_ = std::uncaught_exceptions();
  const Rendezvous meeting_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<RankFailure> failure_;
  std::map<c10d::Work*, Waiting> waiting_;
  bool collected_ = false;  // abort_all() has taken `waiting_`

  std::mutex callback_mutex_;  // held while callbacks run
  std::map<int, std::function<void()>> callbacks_;
  int next_callback_ = 0;

  std::atomic<int> next_channel_{1};  // 0: all_gather() of programs
  std::unique_ptr<FailureDetector> detector_;
  // `detector_`, or null while it is constructed: its threads may report
  // failures before.
  std::atomic<FailureDetector*> announcer_{nullptr};
  std::thread aborter_;  // after a failure
};

}  // namespace gpipe::internal
