#include "gpipe/distributed/world/gloo_group.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/interruptible_store.h"
#include "gpipe/threads/background_thread.h"

namespace gpipe::internal {
namespace {

using c10d::ProcessGroupGloo;
using std::chrono::milliseconds;

// How long a wait() without a timeout lasts. The maximum of milliseconds would
// overflow to a deadline in the past.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
// How many dropped sends of a rank are kept. The failure detector has at most
// 16 heartbeats, a failure and a note for each rank under way.
constexpr std::size_t kDropped = 32;
// The pause between two checks whether connecting was stopped.
constexpr milliseconds kPause{10};

using Pair = c10::intrusive_ptr<ProcessGroupGloo>;

// Sends to one rank whose work was dropped. The oldest ones are complete, since
// all have one tag and so leave in their order.
struct Dropped {
  explicit Dropped(std::size_t limit) : limit(limit) {}

  const std::size_t limit;
  std::mutex mutex;
  std::deque<c10::intrusive_ptr<c10d::Work>> sends;
};

// A send that the group keeps if nothing has waited for it.
class SendWork final : public c10d::Work {
 public:
  SendWork(int rank, c10::intrusive_ptr<c10d::Work> inner,
           std::shared_ptr<Dropped> dropped)
      : c10d::Work(rank, c10d::OpType::SEND),
        inner_(std::move(inner)),
        dropped_(std::move(dropped)) {}

  ~SendWork() override {
    if (is_done_) return;
    const std::lock_guard<std::mutex> lock(dropped_->mutex);
    dropped_->sends.push_back(std::move(inner_));
    if (dropped_->sends.size() > dropped_->limit) dropped_->sends.pop_front();
  }

  bool wait(milliseconds timeout) override {
    const bool done = inner_->wait(timeout);
    if (done) is_done_ = true;
    return done;
  }

  void abort() override { inner_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  const std::shared_ptr<Dropped> dropped_;
  std::atomic<bool> is_done_{false};
};

// A Gloo group of two for each pair of ranks that exchanges something. One Gloo
// group of all ranks would connect each rank with all others. Gloo can also
// connect lazily, but in LibTorch 2.15 and before, the end of such a group may
// block forever. What else Gloo needs is handled here:
// - Gloo holds the memory of a send weakly, and its connection never gets past
//   a send whose memory is gone. So the group keeps a dropped send.
// - The constructor of a group blocks until the other rank has made it, too,
//   and cannot be interrupted. So it runs on a thread of its own, which is left
//   behind if the world fails, and ends at the timeout of connections.
// - A wait in LibTorch's TCPStore blocks all other callers of the client. So
//   the store is asked again and again (interruptible_store.h).
class GlooGroup final : public RankGroup {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::Store> store, GlooDevice device, int rank,
            int size, milliseconds timeout)
      : RankGroup(rank, size),
        store_(c10::make_intrusive<InterruptibleStore>(std::move(store),
                                                       stopped_, timeout)),
        device_(std::move(device)),
        timeout_(timeout) {}
  ~GlooGroup() override { *stopped_ = true; }

  const std::string getBackendName() const override { return "gloo"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to,
                                      int tag) override {
    const Peer peer = this->peer(to);
    return c10::make_intrusive<SendWork>(
        getRank(), wait_for(peer, to)->send(tensors, number_of(to), tag),
        peer.dropped);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from, int tag) override {
    return wait_for(peer(from), from)->recv(tensors, number_of(from), tag);
  }

  void connect(const std::vector<int>& peers) override {
    for (const int each : peers) peer(each);
  }
  void stop_connecting() override { *stopped_ = true; }

 private:
  struct Peer {
    std::shared_future<Pair> pair;
    std::shared_ptr<Dropped> dropped;
  };

  Peer peer(int rank) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < getSize() && rank != getRank(),
                      "rank ", getRank(), " of ", getSize(),
                      " cannot exchange messages with rank ", rank);
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& peer = peers_[rank];
    if (!peer.dropped) {
      peer.pair = start_pair(rank);
      peer.dropped = std::make_shared<Dropped>(kDropped + getSize());
    }
    return peer;
  }

  // Begins to make the group of two.
  std::shared_future<Pair> start_pair(int peer) const {
    std::promise<Pair> promise;
    auto pair = promise.get_future().share();
    if (*stopped_) {
      promise.set_exception(std::make_exception_ptr(std::runtime_error(
          "rank " + std::to_string(getRank()) + " has no connection to rank " +
          std::to_string(peer) + ", and no more are made")));
      return pair;
    }
    const auto [low, high] = std::minmax(getRank(), peer);
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        std::to_string(low) + "-" + std::to_string(high), store_);
    background_thread([store = std::move(store), device = device_,
                       number = 1 - number_of(peer), timeout = timeout_,
                       promise = std::move(promise)]() mutable {
      try {
        auto options = ProcessGroupGloo::Options::create(timeout);
        options->devices.push_back(std::move(device));
        options->threads = 0;  // they would run collective operations
        auto group = c10::make_intrusive<ProcessGroupGloo>(
            std::move(store), number, 2, std::move(options));
        group->setTimeout(kForever);
        promise.set_value(std::move(group));
      } catch (...) {
        promise.set_exception(std::current_exception());
      }
    }).detach();
    return pair;
  }

  const Pair& wait_for(const Peer& peer, int rank) const {
    while (peer.pair.wait_for(kPause) != std::future_status::ready) {
      if (*stopped_) {
        throw std::runtime_error("the connection to rank " +
                                 std::to_string(rank) + " was given up");
      }
    }
    return peer.pair.get();
  }

  // Returns the number of rank `peer` in its group of two with this rank.
  int number_of(int peer) const { return peer > getRank() ? 1 : 0; }

  const std::shared_ptr<std::atomic<bool>> stopped_ =
      std::make_shared<std::atomic<bool>>(false);
  const c10::intrusive_ptr<c10d::Store> store_;
  const GlooDevice device_;
  const milliseconds timeout_;
  std::mutex mutex_;
  std::map<int, Peer> peers_;
};

}  // namespace

GlooDevice gloo_device(const std::string& address) {
  // Without lazy connections, whatever TORCH_GLOO_LAZY_INIT says.
  return ProcessGroupGloo::createDeviceForHostname(address,
                                                   /*lazyInit=*/false);
}

c10::intrusive_ptr<RankGroup> gloo_group(c10::intrusive_ptr<c10d::Store> store,
                                         GlooDevice device, int rank, int size,
                                         milliseconds timeout) {
  return c10::make_intrusive<GlooGroup>(std::move(store), std::move(device),
                                        rank, size, timeout);
}

}  // namespace gpipe::internal
