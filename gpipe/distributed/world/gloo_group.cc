#include "gpipe/distributed/world/gloo_group.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "gpipe/base/threads.h"
#include "gpipe/distributed/world/stores.h"

namespace gpipe::internal {

// Sends to one rank whose work was dropped. The oldest ones are complete, since
// all have one tag and so leave in their order.
struct DroppedSends {
  explicit DroppedSends(std::size_t limit) : limit(limit) {}

  const std::size_t limit;
  std::mutex mutex;
  std::deque<c10::intrusive_ptr<c10d::Work>> sends;
};

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

// A send that the group keeps if nothing has waited for it.
class SendWork final : public c10d::Work {
 public:
  SendWork(int rank, c10::intrusive_ptr<c10d::Work> inner,
           std::shared_ptr<DroppedSends> dropped)
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
  const std::shared_ptr<DroppedSends> dropped_;
  std::atomic<bool> is_done_{false};
};

}  // namespace

GlooDevice gloo_device(const std::string& address) {
  // Without lazy connections, whatever TORCH_GLOO_LAZY_INIT says.
  return ProcessGroupGloo::createDeviceForHostname(address,
                                                   /*lazyInit=*/false);
}

GlooGroup::GlooGroup(c10::intrusive_ptr<c10d::Store> store, GlooDevice device,
                     int rank, int size, milliseconds timeout)
    : c10d::Backend(rank, size),
      store_(c10::make_intrusive<InterruptibleStore>(std::move(store), stopped_,
                                                     timeout)),
      device_(std::move(device)),
      timeout_(timeout) {}

c10::intrusive_ptr<c10d::Work> GlooGroup::send(std::vector<at::Tensor>& tensors,
                                               int to, int tag) {
  return c10::make_intrusive<SendWork>(
      getRank(), wait_for(to).send(tensors, number_of(to), tag),
      peer(to).dropped);
}

c10::intrusive_ptr<c10d::Work> GlooGroup::recv(std::vector<at::Tensor>& tensors,
                                               int from, int tag) {
  return wait_for(from).recv(tensors, number_of(from), tag);
}

void GlooGroup::connect(const std::vector<int>& peers) {
  for (const int each : peers) peer(each);
}

GlooGroup::Peer GlooGroup::peer(int rank) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize() && rank != getRank(), "rank ",
                    getRank(), " of ", getSize(),
                    " cannot exchange messages with rank ", rank);
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[rank];
  if (!peer.dropped) {
    peer.pair = start_pair(rank);
    peer.dropped = std::make_shared<DroppedSends>(kDropped + getSize());
  }
  return peer;
}

std::shared_future<GlooGroup::Pair> GlooGroup::start_pair(int peer) const {
  if (*stopped_) {
    std::promise<Pair> none;
    none.set_exception(std::make_exception_ptr(std::runtime_error(
        c10::str("rank ", getRank(), " has no connection to rank ", peer,
                 ", and no more are made"))));
    return none.get_future();
  }
  // By value: minmax(a, b) returns references, and getRank() a temporary.
  const auto [low, high] = std::minmax({getRank(), peer});
  auto store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str(low, "-", high), store_);
  std::packaged_task<Pair()> make([store = std::move(store), device = device_,
                                   number = 1 - number_of(peer),
                                   timeout = timeout_]() -> Pair {
    auto options = ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(device);
    options->threads = 0;  // they would run collective operations
    auto group = c10::make_intrusive<ProcessGroupGloo>(store, number, 2,
                                                       std::move(options));
    group->setTimeout(kForever);
    return group;
  });
  auto pair = make.get_future().share();
  background_thread(std::move(make)).detach();
  return pair;
}

c10d::Backend& GlooGroup::wait_for(
    int peer, std::chrono::steady_clock::time_point deadline) {
  const auto pair = this->peer(peer).pair;
  while (pair.wait_for(kPause) != std::future_status::ready) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error("it did not connect in time");
    }
    if (*stopped_) {
      throw std::runtime_error(
          c10::str("the connection to rank ", peer, " was given up"));
    }
  }
  return *pair.get();
}

}  // namespace gpipe::internal
