#include "gpipe/distributed/channel/device_transport.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/distributed/channel/interruptible_store.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/gather.h"
#include "gpipe/distributed/world/tags.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Backends =
    std::map<c10::DeviceType, std::unique_ptr<DeviceTransportBackend>>;

// The pause between two checks whether a transfer is complete. It is shorter
// than a transfer, and long enough to use little of a core.
constexpr std::chrono::microseconds kPollInterval{20};
// The pause between two checks whether the world has failed.
constexpr std::chrono::milliseconds kCheckInterval{10};
// How long to wait for groups that are closed or aborted. That may return only
// when the other end does so, too. A frozen rank never does, and a rank that
// waits for this one in its next step does not before this one has left.
constexpr std::chrono::milliseconds kPatience{1000};

using Group = c10::intrusive_ptr<c10d::Backend>;

// Calls `close` for each group on a thread of its own, which keeps the groups
// and may outlive the caller. The future is ready when the last call has
// returned. Exceptions do not count: no transfer is under way, or all have
// failed.
std::future<void> close_all(std::vector<Group> groups,
                            void (c10d::Backend::*close)()) {
  std::packaged_task<void()> task(
      [groups = std::move(groups), close]() mutable {
        for (Group& each : groups) {
          try {
            ((*each).*close)();
          } catch (const std::exception&) {
          }
          each.reset();
        }
      });
  auto closed = task.get_future();
  std::thread(std::move(task)).detach();
  return closed;
}

Backends& backends() {
  static auto* const backends = new Backends();
  return *backends;
}

const DeviceTransportBackend* backend_of(const c10::Device& device) {
  const auto found = backends().find(device.type());
  return found == backends().end() ? nullptr : found->second.get();
}

DeviceTransportBackend::Offer offer_of(const c10::Device& device) {
  const DeviceTransportBackend* const backend = backend_of(device);
  if (backend) return backend->offer(device);
  return {"the program has no engine for direct transfers from " +
              device.str() +
              (device.is_cuda()
                   ? " (build it with --config=cuda and with the headers of "
                     "CUDA and NCCL; Bazel prints which it has not found)"
                   : ""),
          "", ""};
}

// Work whose wait() blocks the host until the device has done the transfer.
// Then later work on any stream finds the bytes. And if a peer is gone, the
// host's deadline ends the wait, and no stream waits without a deadline.
class HostWork final : public c10d::Work {
 public:
  explicit HostWork(c10::intrusive_ptr<c10d::Work> inner)
      : inner_(std::move(inner)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    while (!inner_->isCompleted()) {
      if (aborted_) throw std::runtime_error("it was aborted");
      if (Clock::now() >= deadline)
        throw std::runtime_error("it took too long");
      std::this_thread::sleep_for(kPollInterval);
    }
    if (inner_->exception()) std::rethrow_exception(inner_->exception());
    inner_->synchronize();
    return true;
  }

  // Ends wait(). The transfer ends when its group is aborted.
  void abort() override { aborted_ = true; }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  std::atomic<bool> aborted_{false};
};

// Work that is complete.
class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

// The turn of one thread to transfer with a device of this process. NCCL allows
// several communicators of a device only if their transfers run one after the
// other.
class Turn {
 public:
  // Blocks until no other thread has the turn. Throws PeerError if the world
  // fails meanwhile.
  Turn(World& world, const c10::Device& device) : state_(state_of(device)) {
    std::unique_lock<std::mutex> lock(state_.mutex);
    while (state_.is_taken) {
      // Nobody notifies when the world fails.
      state_.changed.wait_for(lock, kCheckInterval);
      if (state_.is_taken) world.check();
    }
    state_.is_taken = true;
  }
  ~Turn() {
    {
      std::lock_guard<std::mutex> lock(state_.mutex);
      state_.is_taken = false;
    }
    state_.changed.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_taken = false;
  };
  // Of all transports of the process that use `device`.
  static State& state_of(const c10::Device& device) {
    static std::mutex mutex;
    static auto* const states = new std::unordered_map<c10::Device, State>();
    std::lock_guard<std::mutex> lock(mutex);
    return (*states)[device];
  }
  State& state_;
};

// Returns the store of the world, by a connection of its own. Its waits end
// when `failed` is set.
c10::intrusive_ptr<c10d::Store> store_of(
    World& world, std::shared_ptr<const std::atomic<bool>> failed) {
  auto own = world.store().clone();
  own->setTimeout(world.timeout());
  return c10::make_intrusive<InterruptibleStore>(
      std::move(own), std::move(failed), world.timeout());
}

// The direct transport. Each direction between two ranks has a group of its
// own. In a group for both directions, a rank's transfers would run one after
// the other, in the order in which it starts them. Two ranks that both start
// with a send would then wait forever.
//
// A transfer occupies both devices until it is complete, so that it may start
// only when nothing that it needs is still to come:
// - Its bytes are complete on the device of the sender.
// - Threads of both ranks are there: they have met by messages of the world.
// - Both ranks have the turn of their device. The lower rank takes its turn
//   first. So a rank that has the turn waits for higher ranks only, the highest
//   of them waits for nobody, and its transfer ends.
// Then a thread that waits for a whole device, for example because its memory
// is full, waits for transfers that end without it.
class DeviceTransport final : public Transport {
 public:
  DeviceTransport(World& world, const DeviceTransportBackend& backend,
                  const c10::Device& device, std::string name)
      : world_(world),
        backend_(backend),
        device_(device),
        name_(std::move(name)),
        tags_(world.next_channel()),
        failed_(std::make_shared<std::atomic<bool>>(false)),
        store_(store_of(world, failed_)),
        callback_(world.on_failure([this] { abort(); })) {}

  // Blocks until the other ranks close their ends, too; at most for some
  // seconds. All transfers are complete.
  ~DeviceTransport() override {
    const auto deadline = Clock::now() + kPatience;
    const auto closed = close_all(groups(), &c10d::Backend::shutdown);
    while (closed.wait_for(kCheckInterval) != std::future_status::ready) {
      if (world_.failure() || Clock::now() >= deadline) {
        abort();
        break;
      }
    }
    world_.forget(callback_);
  }

  c10::Device device() const override { return device_; }
  bool takes_early_receives() const override { return false; }

  Work send(const at::Tensor& bytes, int to, int,
            const World::Action& action) override {
    Event::record(device_).wait(c10::Device(c10::kCPU));
    return transfer(world_.rank(), to, action, [&] {
      std::vector<at::Tensor> list{bytes};
      return group(world_.rank(), to).send(list, 1, 0);
    });
  }

  Work receive(const at::Tensor& bytes, int from, int,
               const World::Action& action) override {
    return transfer(from, world_.rank(), action, [&] {
      std::vector<at::Tensor> list{bytes};
      return group(from, world_.rank()).recv(list, 0, 0);
    });
  }

 private:
  // Blocks until both ranks can transfer, and then until `post` has done so.
  Work transfer(int from, int to, const World::Action& action,
                const std::function<Work()>& post) {
    const int peer = from == world_.rank() ? to : from;
    const int tag = from < to ? tags_.header : tags_.payload;
    const auto run = [&] {
      const Work work = world_.begin(peer, action, [&]() -> Work {
        return c10::make_intrusive<HostWork>(post());
      });
      world_.wait(*work, peer, action);
    };
    // The higher rank says that it is there; the lower one answers when it has
    // its turn.
    at::Tensor here = at::zeros({1}, at::kByte), go = at::zeros({1}, at::kByte);
    if (world_.rank() < peer) {
      world_.wait(*world_.receive(here, peer, tag, action), peer, action);
      const Turn turn(world_, device_);
      const Work answer = world_.send(go, peer, tag, action);
      run();
      world_.wait(*answer, peer, action);
    } else {
      const Work answer = world_.receive(go, peer, tag, action);
      world_.wait(*world_.send(here, peer, tag, action), peer, action);
      world_.wait(*answer, peer, action);
      const Turn turn(world_, device_);
      run();
    }
    return c10::make_intrusive<DoneWork>();
  }

  // Returns the group for the direction; connects if there is none. Only one
  // thread at a time may call it for each direction.
  c10d::Backend& group(int from, int to) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = groups_.find({from, to});
      if (found != groups_.end()) return *found->second;
    }
    // Without the lock, because connect() may wait for the other end while
    // other directions go on.
    auto group =
        backend_.connect(c10::make_intrusive<c10d::PrefixStore>(
                             c10::str(name_, "/", from, ">", to), store_),
                         world_.rank() == to, device_, world_.timeout());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      groups_.emplace(std::pair(from, to), group);
    }
    if (world_.failure()) group->abort();  // abort() ran before emplace()
    return *group;
  }

  // Returns the groups in an order that is the same on all ranks, because
  // closing one may wait for its other end.
  std::vector<Group> groups() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Group> list;
    for (const auto& [ends, group] : groups_) list.push_back(group);
    return list;
  }

  // Aborts all transfers. Waits for that at most for kPatience.
  void abort() {
    *failed_ = true;
    close_all(groups(), &c10d::Backend::abort).wait_for(kPatience);
  }

  World& world_;
  const DeviceTransportBackend& backend_;
  const c10::Device device_;
  const std::string name_;
  const Tags tags_;  // of the messages by which two ranks meet
  // Ends waits for the store, which is that of all groups.
  const std::shared_ptr<std::atomic<bool>> failed_;
  const c10::intrusive_ptr<c10d::Store> store_;

  std::mutex mutex_;
  std::map<std::pair<int, int>, Group> groups_;
  const int callback_;  // last: may be called at once
};

}  // namespace

void register_device_transport(
    c10::DeviceType type, std::unique_ptr<DeviceTransportBackend> backend) {
  backends()[type] = std::move(backend);
}

Transfers agree_on_transfers(World& world, int tag, const c10::Device& device,
                             Transfers asked) {
  if (asked != Transfers::kDirect) return Transfers::kHost;
  TORCH_CHECK_VALUE(
      !world.is_secured(),
      "direct transfers are not possible in a world with WorldOptions::secret "
      "or tls: NCCL neither encrypts nor asks who connects; choose "
      "Transfers::kHost");
  const DeviceTransportBackend::Offer mine = offer_of(device);
  std::string bytes;
  put_text(bytes, mine.why_not);
  put_text(bytes, mine.version);
  put_text(bytes, mine.device);
  const auto all = all_gather(world, tag, bytes, "agreeing on the transport");

  std::string why_not, version;
  std::map<std::string, int> ranks;  // by device
  for (int rank = 0; rank < world.size() && why_not.empty(); ++rank) {
    std::size_t at = 0;
    why_not = take_text(all[rank], at);
    const std::string theirs = take_text(all[rank], at);
    const std::string its_device = take_text(all[rank], at);
    if (rank == 0) version = theirs;
    const auto [same, is_new] = ranks.emplace(its_device, rank);
    if (why_not.empty() && theirs != version) {
      why_not = c10::str("it has ", theirs, ", but rank 0 has ", version);
    }
    if (why_not.empty() && !is_new) {
      why_not =
          c10::str("rank ", same->second, " has the same device, ", its_device);
    }
    if (!why_not.empty()) why_not = c10::str("rank ", rank, ": ", why_not);
  }
  TORCH_CHECK_VALUE(why_not.empty(), "direct transfers are not possible here (",
                    why_not, "); choose Transfers::kHost");
  return Transfers::kDirect;
}

std::unique_ptr<Transport> make_transport(World& world,
                                          const c10::Device& device,
                                          Transfers transfers,
                                          const std::string& name) {
  if (transfers != Transfers::kDirect) {
    return std::make_unique<HostTransport>(world);
  }
  return std::make_unique<DeviceTransport>(world, *backend_of(device), device,
                                           name);
}

}  // namespace gpipe::internal
