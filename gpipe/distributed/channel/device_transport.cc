#include "gpipe/distributed/channel/device_transport.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unordered_map>
#include <vector>

#include "gpipe/base/threads.h"
#include "gpipe/distributed/world/backends.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/distributed/world/stores.h"
#include "gpipe/runtime/device/origin.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;

// ---- What the transport and its self-test share.

// One end of the connection for one direction between two ranks.
using DeviceGroup = c10::intrusive_ptr<c10d::Backend>;

// The pause between two checks whether the world has failed.
constexpr std::chrono::milliseconds kCheckInterval{10};
// The pause between two checks whether a transfer is complete. It is shorter
// than a transfer, and long enough to use little of a core.
constexpr std::chrono::microseconds kPollInterval{20};
// How long to wait for groups that are closed or aborted. That may return only
// when the other end does so, too. A frozen rank never does, and a rank that
// waits for this one in its next step does not before this one has left.
constexpr std::chrono::milliseconds kPatience{1000};

// Calls `close` for each group, of `device`, on a thread of its own, which
// keeps the group and may outlive the caller. The calls must run at the same
// time: NCCL frees memory in an abort, and CUDA then waits for the whole
// device, which a receive of another group occupies until that is aborted, too.
//
// The future is ready when the last call has returned. Exceptions do not count:
// no transfer is under way, or all have failed.
std::future<void> close_all(std::vector<DeviceGroup> groups,
                            const c10::Device& device,
                            void (c10d::Backend::*close)()) {
  // Done when the last of its owners is gone: the threads, and this call.
  const std::shared_ptr<std::promise<void>> all(new std::promise<void>(),
                                                [](std::promise<void>* done) {
                                                  done->set_value();
                                                  delete done;
                                                });
  auto closed = all->get_future();
  for (DeviceGroup& each : groups) {
    try {
      background_thread([group = std::move(each), device, close,
                         all]() mutable {
        c10::OptionalDeviceGuard on_device;  // see record_event()
        try {
          on_device.reset_device(device);  // throws if the device has failed
          ((*group).*close)();
        } catch (const std::exception&) {
        }
        group.reset();
      }).detach();
    } catch (const std::system_error&) {
      // No thread can start. The group closes when its last owner is gone.
    }
  }
  return closed;
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

// Returns the turn of this thread to transfer with a device of this process,
// for as long as the lock lives. NCCL allows several communicators of a device
// only if their transfers run one after the other. Blocks until no other thread
// has the turn.
// `check`: called again and again meanwhile; it may throw to end the wait.
std::unique_lock<std::timed_mutex> take_turn(
    const c10::Device& device, const std::function<void()>& check) {
  static std::mutex mutex;
  static auto* const turns =
      new std::unordered_map<c10::Device, std::timed_mutex>();
  std::unique_lock<std::mutex> lock(mutex);
  std::unique_lock<std::timed_mutex> turn((*turns)[device], std::defer_lock);
  lock.unlock();
  while (!turn.try_lock_for(kCheckInterval)) check();
  return turn;
}

// Returns the store of the world, by a connection of its own. Its waits end
// when `failed` is set.
c10::intrusive_ptr<c10d::Store> store_of(
    Communicator& world, std::shared_ptr<const std::atomic<bool>> failed) {
  world.check();  // rank 0 closes the store's port after a failure
  auto own = world.store().clone();
  own->setTimeout(world.options().timeout);
  return c10::make_intrusive<InterruptibleStore>(
      std::move(own), std::move(failed), world.options().timeout);
}

// ---- The transport.

// The direct transport. Each direction between two ranks has a group of its
// own. In a group for both directions, a rank's transfers would run one after
// the other, in the order in which it starts them. Two ranks that both start
// with a send would then wait forever. Collective operations have a group for
// each list of members.
//
// An operation occupies the devices of all members of its group until it is
// complete, so that it may start only when nothing that it needs is still to
// come:
// - The bytes that a member gives are complete on its device.
// - Threads of all members are there: they have met by messages of the world.
// - All members have the turn of their device. A lower rank takes its turn
//   before higher ones. So a rank that has the turn waits for higher ranks
//   only, the highest of them waits for nobody, and its operation ends.
// Then a thread that waits for a whole device, for example because its memory
// is full, waits for transfers that end without it.
class DeviceTransport final : public Transport {
 public:
  DeviceTransport(Communicator& world, const DeviceTransportBackend& backend,
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
    if (origin_.forked()) {
      // Neither CUDA nor the threads of the groups are here.
      new auto(std::move(groups_));
      return;
    }
    const auto deadline = Clock::now() + kPatience;
    const auto closed = close_all(groups(), device_, &c10d::Backend::shutdown);
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
            const Transport::Action& action) override {
    complete_own_work();
    return transfer(world_.rank(), to, action, [&](c10d::Backend& group) {
      std::vector<at::Tensor> list{bytes};
      return group.send(list, 1, 0);
    });
  }

  Work receive(const at::Tensor& bytes, int from, int,
               const Transport::Action& action) override {
    return transfer(from, world_.rank(), action, [&](c10d::Backend& group) {
      std::vector<at::Tensor> list{bytes};
      return group.recv(list, 0, 0);
    });
  }

  bool has_collectives() const override { return true; }

  void collective(const std::vector<int>& members, const Collective& post,
                  const Transport::Action& action) override {
    complete_own_work();
    run(members, tags_.sums, action, [&] {
      return post(group(c10::str("members ", c10::Join(",", members)),
                        index_in(members), members.size()));
    });
  }

 private:
  // Blocks until the work of this thread's current stream is complete, so that
  // the other members do not wait for it on their devices.
  void complete_own_work() const {
    Event::record(device_).wait(c10::Device(c10::kCPU));
  }

  std::size_t index_in(const std::vector<int>& members) const {
    return std::ranges::find(members, world_.rank()) - members.begin();
  }

  Work transfer(int from, int to, const Transport::Action& action,
                const Collective& post) {
    run({std::min(from, to), std::max(from, to)},
        from < to ? tags_.header : tags_.payload, action, [&] {
          return post(group(c10::str(from, ">", to),
                            world_.rank() == to ? 1 : 0, /*size=*/2));
        });
    return {};
  }

  // Blocks until all members can transfer, and then until the work that `post`
  // returns is complete.
  void run(const std::vector<int>& members, int tag,
           const Transport::Action& action, const std::function<Work()>& post) {
    const c10::DeviceGuard on_device(device_);  // see record_event()
    const std::size_t own = index_in(members);
    // From the highest member to the lowest, each says that it is there. From
    // the lowest to the highest, each says that it has its turn.
    at::Tensor here = at::zeros({1}, at::kByte), go = at::zeros({1}, at::kByte);
    const bool is_last = own + 1 == members.size();
    const int next = is_last ? members[own - 1] : members[own + 1];
    if (!is_last) {
      world_.wait(world_.receive(here, next, tag, action), next, action);
    }
    if (own > 0) {
      const int before = members[own - 1];
      const Work answer = world_.receive(go, before, tag, action);
      world_.wait(world_.send(here, before, tag, action), before, action);
      world_.wait(answer, before, action);
    }
    const auto turn = take_turn(device_, [this] { world_.check(); });
    Work answer;
    if (!is_last) answer = world_.send(go, next, tag, action);
    const Work work = world_.begin(next, action, [&]() -> Work {
      return c10::make_intrusive<HostWork>(post());
    });
    world_.wait(work, next, action);
    world_.wait(answer, next, action);
  }

  // Returns member `rank` of the group `name` of `size` ranks; connects if
  // there is none. Only one thread at a time may call it for each name.
  c10d::Backend& group(const std::string& name, std::size_t rank,
                       std::size_t size) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = groups_.find(name);
      if (found != groups_.end()) return *found->second;
    }
    // Without the lock, because connect() may wait for the other members while
    // other groups go on.
    auto group =
        backend_.connect(c10::make_intrusive<c10d::PrefixStore>(
                             c10::str(name_, "/", name), store_),
                         static_cast<int>(rank), static_cast<int>(size),
                         device_, world_.options().timeout);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      groups_.emplace(name, group);
    }
    if (world_.failure()) group->abort();  // abort() ran before emplace()
    return *group;
  }

  std::vector<DeviceGroup> groups() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<DeviceGroup> list;
    for (const auto& [name, group] : groups_) list.push_back(group);
    return list;
  }

  // Aborts all transfers. Waits for that at most for kPatience.
  void abort() {
    *failed_ = true;
    close_all(groups(), device_, &c10d::Backend::abort).wait_for(kPatience);
  }

  Communicator& world_;
  const DeviceTransportBackend& backend_;
  const c10::Device device_;
  const std::string name_;
  const Tags tags_;  // of the messages by which two ranks meet
  // Ends waits for the store, which is that of all groups.
  const std::shared_ptr<std::atomic<bool>> failed_;
  const c10::intrusive_ptr<c10d::Store> store_;

  const Origin origin_;
  std::mutex mutex_;
  std::map<std::string, DeviceGroup> groups_;
  const int callback_;  // last: may be called at once
};

// ---- The self-test of direct transfers between two ranks.

// Larger than NCCL's buffers for small messages, and not a multiple of them.
constexpr int64_t kBytes = (int64_t{1} << 20) + 1;
constexpr int kTransfers = 3;  // in each direction and check

// The ranks of both ends in a group, which is for one direction.
constexpr int kSender = 0, kReceiver = 1;

// Why a check has failed.
constexpr char kTimeout[] = "it did not end in the time for the self-test";
constexpr char kOther[] = "the other rank has failed";

// Returns the bytes that `rank` sends: different ones for each rank and `k`.
at::Tensor test_bytes(int rank, int k) {
  return at::arange(kBytes, at::kLong)
      .mul_(7 + 2 * rank)
      .add_(k)
      .remainder_(251)
      .to(at::kByte);
}

// One end of the self-test of two ranks. It uses the store and the two devices,
// and no message of the world, so that its failure does not end the world. Its
// threads keep it, because a thread that hangs in a transfer outlives run().
class SelfTest : public std::enable_shared_from_this<SelfTest> {
 public:
  // `store`: used by these two ranks only. Its waits must end once `stopped` is
  // set. `rank`: 0 or 1; the other end has the other one.
  SelfTest(const DeviceTransportBackend& backend,
           c10::intrusive_ptr<c10d::Store> store,
           std::shared_ptr<std::atomic<bool>> stopped, int rank,
           const c10::Device& device)
      : backend_(backend),
        store_(std::move(store)),
        stopped_(std::move(stopped)),
        rank_(rank),
        device_(device) {}

  // Runs three checks: transfers in both directions at once; transfers while
  // the host waits for the whole device; a receive that is aborted. Returns
  // which one has failed and why, or an empty text. Blocks at most for `limit`
  // and some seconds, and ends early once `failed` is set.
  std::string run(std::chrono::milliseconds limit,
                  const std::atomic<bool>& failed) {
    deadline_ = Clock::now() + limit;
    failed_ = &failed;
    const std::pair<const char*, std::function<void()>> parts[] = {
        {"transfers in both directions at once",
         [this] { both_directions(/*wait=*/false); }},
        {"transfers while the host waits for the whole device",
         [this] { both_directions(/*wait=*/true); }},
        {"a receive that is aborted", [this] { aborted_receive(); }}};
    for (const auto& [name, part] : parts) {
      const std::string why = check(part);
      if (why.empty()) continue;
      *stopped_ = true;
      tell_failure(why);
      close_all(groups(), device_, &c10d::Backend::abort).wait_for(kPatience);
      return c10::str(name, ": ", why);
    }
    return "";
  }

  // Drops both ends of the connections, which ends transfers that still run.
  // Blocks until they have ended, at most for some seconds. Call it when the
  // other rank has ended its run(), too.
  void drop() {
    *stopped_ = true;
    std::vector<DeviceGroup> last = groups();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      groups_ = {};
    }
    close_all(std::move(last), device_, &c10d::Backend::abort)
        .wait_for(kPatience);
    // Their tasks keep this object.
    for (auto& each : std::exchange(unfinished_, {})) each.wait_for(kPatience);
    // The memory of an abandoned transfer is free when the device is. If it
    // never is, the thread keeps the memory.
    try {
      start([this] {
        wait_for_device();
        std::lock_guard<std::mutex> lock(mutex_);
        kept_.clear();
      }).wait_for(kPatience);
    } catch (const std::system_error&) {
      // No thread can start. The memory goes with this object.
    }
  }

 private:
  // Runs `part` on a thread of its own. Returns why it has failed; empty if it
  // has not.
  std::string check(const std::function<void()>& part) {
    std::future<std::string> result = start(part);
    while (result.wait_for(kCheckInterval) != std::future_status::ready) {
      const std::string why = why_over();
      if (why.empty()) continue;
      unfinished_.push_back(std::move(result));
      return why;
    }
    const std::string why = result.get();
    // Waits and transfers of this rank and of the other one fail with errors of
    // their own when the time is over.
    return !why.empty() && why_over() == kTimeout ? kTimeout : why;
  }

  // Returns why the test is over; empty if it is not. When the time is over for
  // one rank, it is over for both, whichever began earlier.
  std::string why_over() {
    if (Clock::now() >= deadline_ || *failed_) return kTimeout;
    try {
      const std::string key = c10::str("failed/", 1 - rank_);
      return store_->check({key}) ? store_->get_to_str(key) : "";
    } catch (const std::exception&) {
      return kOther;
    }
  }

  // Tells the other rank, which then need not wait until its time is over. A
  // store that has failed is reported by the world.
  void tell_failure(const std::string& why) {
    try {
      store_->set(c10::str("failed/", rank_),
                  why == kTimeout ? kTimeout : kOther);
    } catch (const std::exception&) {
    }
  }

  std::future<std::string> start(std::function<void()> part) {
    std::packaged_task<std::string()> task(
        [self = shared_from_this(), part = std::move(part)]() -> std::string {
          c10::OptionalDeviceGuard on_device;  // see record_event()
          try {
            on_device.reset_device(self->device_);
            part();
          } catch (const std::exception& error) {
            return reason_of(error);
          }
          return "";
        });
    auto result = task.get_future();
    background_thread(std::move(task)).detach();
    return result;
  }

  // One thread sends to the other rank, while another one receives.
  void both_directions(bool wait) {
    const int phase = phase_++;
    auto sent = start([this, phase, wait] {
      for (int k = 0; k < kTransfers; ++k) {
        const at::Tensor bytes = test_bytes(rank_, k).to(device_);
        Event::record(device_).wait(c10::Device(c10::kCPU));
        transfer(rank_, phase, k, wait, bytes);
      }
    });
    auto received = start([this, phase, wait] {
      for (int k = 0; k < kTransfers; ++k) {
        const at::Tensor bytes =
            at::empty({kBytes}, at::TensorOptions(device_).dtype(at::kByte));
        transfer(1 - rank_, phase, k, wait, bytes);
        TORCH_CHECK(bytes.cpu().equal(test_bytes(1 - rank_, k)), "message ", k,
                    " of ", kBytes, " bytes arrived with wrong bytes");
      }
    });
    for (const std::string& why : {received.get(), sent.get()}) {
      TORCH_CHECK(why.empty(), why);
    }
  }

  // Transfers by the rules of DeviceTransport::transfer().
  void transfer(int from, int phase, int k, bool wait,
                const at::Tensor& bytes) {
    const std::string key = c10::str(from, "/", phase, "/", k);
    std::vector<at::Tensor> list{keep(bytes)};
    const bool leads = rank_ == 0;
    if (!leads) store_->set(key + "/here", "1");
    await(key + (leads ? "/here" : "/go"));
    const auto turn = take_turn(device_, [this] { check_time(); });
    if (leads) store_->set(key + "/go", "1");
    // Kept: drop() may run while this thread hangs in a transfer.
    const DeviceGroup ends = group(from);
    auto work = from == rank_ ? ends->send(list, kReceiver, 0)
                              : ends->recv(list, kSender, 0);
    if (wait) wait_for_device();
    HostWork(std::move(work)).wait(left());
  }

  // Both ranks receive what nobody sends, and abort. Then the devices must be
  // free.
  void aborted_receive() {
    const auto turn = take_turn(device_, [this] { check_time(); });
    std::vector<at::Tensor> list{
        keep(at::empty({kBytes}, at::TensorOptions(device_).dtype(at::kByte)))};
    const auto work = group(1 - rank_)->recv(list, kSender, 0);
    store_->set(c10::str("posted/", rank_), "1");
    await(c10::str("posted/", 1 - rank_));
    TORCH_CHECK(!work->isCompleted(), "it ended although nothing was sent");
    close_all(groups(), device_, &c10d::Backend::abort);
    wait_for_device();
  }

  // Keeps `bytes` as long as this object, because the device may still access
  // them when the host has given up a transfer.
  at::Tensor keep(const at::Tensor& bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(bytes);
    return bytes;
  }

  void wait_for_device() const {
    c10::impl::VirtualGuardImpl(device_.type())
        .synchronizeDevice(device_.index());
  }

  // Returns the group for the direction; connects if there is none.
  DeviceGroup group(int from) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (groups_[from]) return groups_[from];
    }
    auto group = backend_.connect(c10::make_intrusive<c10d::PrefixStore>(
                                      c10::str("group/", from), store_),
                                  rank_ == from ? kSender : kReceiver,
                                  /*size=*/2, device_, left());
    std::lock_guard<std::mutex> lock(mutex_);
    check_time();
    groups_[from] = group;
    return group;
  }

  std::vector<DeviceGroup> groups() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<DeviceGroup> list;
    for (const DeviceGroup& each : groups_) {
      if (each) list.push_back(each);
    }
    return list;
  }

  void await(const std::string& key) { store_->wait({key}, left()); }

  // Returns the time that is left, at least a millisecond.
  std::chrono::milliseconds left() const {
    check_time();
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(
                        deadline_ - Clock::now()));
  }
  void check_time() const {
    if (*stopped_ || Clock::now() >= deadline_) {
      throw std::runtime_error(kTimeout);
    }
  }

  const DeviceTransportBackend& backend_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<std::atomic<bool>> stopped_;
  const int rank_;
  const c10::Device device_;
  Clock::time_point deadline_;
  const std::atomic<bool>* failed_ = nullptr;  // read in run() only
  int phase_ = 0;                              // of both_directions()
  std::vector<std::future<std::string>> unfinished_;

  std::mutex mutex_;
  std::array<DeviceGroup, 2> groups_;  // by sender
  std::vector<at::Tensor> kept_;
};

// ---- The agreement of all ranks on a transport.

// The most time for the self-test of two ranks. NCCL loads its kernels in it.
constexpr std::chrono::milliseconds kSelfTestLimit{20000};

DeviceTransportBackend::Offer offer_of(const c10::Device& device) {
  const DeviceTransportBackend* const backend = backend_of(device.type());
  if (backend) return backend->offer(device);
  return {"the program has no engine for direct transfers from " +
              device.str() +
              (device.is_cuda()
                   ? " (build it with --config=cuda and with the headers of "
                     "CUDA and NCCL; Bazel prints which it has not found)"
                   : ""),
          "", "", ""};
}

// Returns why the ranks cannot transfer directly, the same on all ranks; empty
// if they can.
std::string compare_offers(Communicator& world, int tag,
                           const c10::Device& device) {
  using Offer = DeviceTransportBackend::Offer;
  const Offer mine = offer_of(device);
  const auto all = all_gather(
      world, tag,
      pack(mine.why_not, mine.version, mine.device, mine.why_not_shared),
      "agreeing on the transport");

  std::vector<Offer> offers;
  std::map<std::string, int> ranks;  // the first with each device
  for (int rank = 0; rank < world.size(); ++rank) {
    Offer& offer = offers.emplace_back();
    std::size_t at = 0;
    unpack(all[rank], at, offer.why_not, offer.version, offer.device,
           offer.why_not_shared);
    std::string why_not = offer.why_not;
    if (why_not.empty() && offer.version != offers[0].version) {
      why_not = c10::str("it has ", offer.version, ", but rank 0 has ",
                         offers[0].version);
    }
    const int first = ranks.emplace(offer.device, rank).first->second;
    if (why_not.empty() && first != rank) {
      const std::string& reason = offer.why_not_shared.empty()
                                      ? offers[first].why_not_shared
                                      : offer.why_not_shared;
      if (!reason.empty()) {
        why_not = c10::str("rank ", first, " has the same device, ",
                           offer.device, "; ", reason);
      }
    }
    if (!why_not.empty()) return c10::str("rank ", rank, ": ", why_not);
  }
  return "";
}

// Runs the self-test of each rank with the next one: first of those pairs whose
// lower rank is even, then of the others. Returns which have failed and why,
// the same on all ranks; empty if none has.
std::string test_neighbours(Communicator& world, int tag,
                            const c10::Device& device) {
  // All rounds together take less than the world's timeout, so that a rank
  // without a partner may wait for the others.
  const auto limit = std::min(kSelfTestLimit, world.options().timeout / 4);
  const int channel = world.next_channel();
  auto stopped = std::make_shared<std::atomic<bool>>(false);
  const int callback = world.on_failure([stopped] { *stopped = true; });
  std::vector<std::shared_ptr<SelfTest>> tests;
  const auto drop = c10::make_scope_exit([&] {
    for (const auto& each : tests) each->drop();
  });
  std::string mine;
  for (const int round : {0, 1}) {
    const bool is_lower = world.rank() % 2 == round;
    const int lower = is_lower ? world.rank() : world.rank() - 1;
    if (lower < 0 || lower + 1 >= world.size()) continue;
    auto ended = std::make_shared<std::atomic<bool>>(false);
    tests.push_back(std::make_shared<SelfTest>(
        *backend_of(device.type()),
        c10::make_intrusive<c10d::PrefixStore>(
            c10::str("self-test/", channel, "/", lower),
            store_of(world, ended)),
        ended, is_lower ? 0 : 1, device));
    const std::string why = tests.back()->run(limit, *stopped);
    if (!why.empty() && mine.empty()) {
      mine = c10::str("rank ", world.rank(), " with rank ",
                      is_lower ? lower + 1 : lower, ": ", why);
    }
  }
  world.forget(callback);
  std::string failed;
  for (const std::string& each :
       all_gather(world, tag, mine, "the self-test of direct transfers")) {
    if (!each.empty()) failed += (failed.empty() ? "" : "; ") + each;
  }
  return failed;
}

}  // namespace

std::pair<Transfers, std::string> agree_on_transfers(Communicator& world,
                                                     int tag,
                                                     const c10::Device& device,
                                                     Transfers asked) {
  const bool is_auto = asked == Transfers::kAuto;
  if (is_auto) {
    asked = names_direct_transfers(world.options().backend) ? Transfers::kTested
                                                            : Transfers::kHost;
  }
  if (asked == Transfers::kHost) {
    return {asked, c10::str("Transfers::", is_auto ? "kAuto means" : "kHost is",
                            " the transport through the hosts")};
  }
  const std::string found = compare_offers(world, tag, device);
  if (!found.empty()) {
    const auto text =
        c10::str("direct transfers are not possible here (", found, ")");
    if (asked != Transfers::kTested) {
      meet(world, world.all_ranks(), tag, "agreeing on the transport");
      TORCH_CHECK_VALUE(false, text, "; choose Transfers::kHost");
    }
    return {Transfers::kHost, text};
  }
  if (asked == Transfers::kDirect) {
    return {asked, "Transfers::kDirect was asked for"};
  }
  const std::string failed = test_neighbours(world, tag, device);
  if (failed.empty()) {
    return {Transfers::kDirect,
            "the self-test of direct transfers has passed on all ranks"};
  }
  return {Transfers::kHost,
          c10::str("the self-test of direct transfers has failed: ", failed)};
}

std::shared_ptr<Transport> make_transport(
    const std::shared_ptr<Communicator>& world, const c10::Device& device,
    Transfers transfers, const std::string& name) {
  if (transfers != Transfers::kDirect) return world;
  return std::make_shared<DeviceTransport>(*world, *backend_of(device.type()),
                                           device, name);
}

}  // namespace gpipe::internal
