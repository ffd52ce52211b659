// Parts of direct transfers that DeviceTransport and its self-test share.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace gpipe::internal {

// One end of the connection for one direction between two ranks.
using DeviceGroup = c10::intrusive_ptr<c10d::Backend>;

// The pause between two checks whether the world has failed.
constexpr std::chrono::milliseconds kCheckInterval{10};
// How long to wait for groups that are closed or aborted. That may return only
// when the other end does so, too. A frozen rank never does, and a rank that
// waits for this one in its next step does not before this one has left.
constexpr std::chrono::milliseconds kPatience{1000};

// Calls `close` for each group on a thread of its own, which keeps the group
// and may outlive the caller. The calls must run at the same time: NCCL frees
// memory in an abort, and CUDA then waits for the whole device, which a
// receive of another group occupies until that is aborted, too.
//
// The future is ready when the last call has returned. Exceptions do not count:
// no transfer is under way, or all have failed.
std::future<void> close_all(std::vector<DeviceGroup> groups,
                            void (c10d::Backend::*close)());

// Work whose wait() blocks the host until the device has done the transfer.
// Then later work on any stream finds the bytes. And if a peer is gone, the
// host's deadline ends the wait, and no stream waits without a deadline.
class HostWork final : public c10d::Work {
 public:
  explicit HostWork(c10::intrusive_ptr<c10d::Work> inner)
      : inner_(std::move(inner)) {}

  bool wait(std::chrono::milliseconds timeout) override;

  // Ends wait(). The transfer ends when its group is aborted.
  void abort() override { aborted_ = true; }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  std::atomic<bool> aborted_{false};
};

// The turn of one thread to transfer with a device of this process. NCCL allows
// several communicators of a device only if their transfers run one after the
// other.
class Turn {
 public:
  // Blocks until no other thread has the turn.
  // `check`: called again and again meanwhile; it may throw to end the wait.
  Turn(const c10::Device& device, const std::function<void()>& check);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_taken = false;
  };
  // Returns the state for all threads of the process that use `device`.
  static State& state_of(const c10::Device& device);
  State& state_;
};

}  // namespace gpipe::internal
