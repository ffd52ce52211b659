#include "gpipe/distributed/channel/device_transport.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/channel/device_groups.h"
#include "gpipe/distributed/channel/self_test.h"
#include "gpipe/distributed/world/all_gather.h"
#include "gpipe/distributed/world/backends.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/interruptible_store.h"
#include "gpipe/distributed/world/tags.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;

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

// Returns the store of the world, by a connection of its own. Its waits end
// when `failed` is set.
c10::intrusive_ptr<c10d::Store> store_of(
    Communicator& world, std::shared_ptr<const std::atomic<bool>> failed) {
  auto own = world.store().clone();
  own->setTimeout(world.options().timeout);
  return c10::make_intrusive<InterruptibleStore>(
      std::move(own), std::move(failed), world.options().timeout);
}

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
    return std::find(members.begin(), members.end(), world_.rank()) -
           members.begin();
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
    const Turn turn(device_, [this] { world_.check(); });
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
    close_all(groups(), &c10d::Backend::abort).wait_for(kPatience);
  }

  Communicator& world_;
  const DeviceTransportBackend& backend_;
  const c10::Device device_;
  const std::string name_;
  const Tags tags_;  // of the messages by which two ranks meet
  // Ends waits for the store, which is that of all groups.
  const std::shared_ptr<std::atomic<bool>> failed_;
  const c10::intrusive_ptr<c10d::Store> store_;

  std::mutex mutex_;
  std::map<std::string, DeviceGroup> groups_;
  const int callback_;  // last: may be called at once
};

// Returns why the ranks cannot transfer directly, the same on all ranks; empty
// if they can.
std::string compare_offers(Communicator& world, int tag,
                           const c10::Device& device) {
  using Offer = DeviceTransportBackend::Offer;
  const Offer mine = offer_of(device);
  std::string bytes;
  for (const std::string& each :
       {mine.why_not, mine.version, mine.device, mine.why_not_shared}) {
    put_text(bytes, each);
  }
  const auto all = all_gather(world, tag, bytes, "agreeing on the transport");

  std::vector<Offer> offers;
  std::map<std::string, int> ranks;  // the first with each device
  for (int rank = 0; rank < world.size(); ++rank) {
    std::vector<std::string> texts = take_texts(all[rank]);
    texts.resize(4);
    const Offer offer{texts[0], texts[1], texts[2], texts[3]};
    offers.push_back(offer);
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
  std::vector<std::unique_ptr<SelfTest>> tests;
  std::string mine;
  for (const int round : {0, 1}) {
    const bool is_lower = world.rank() % 2 == round;
    const int lower = is_lower ? world.rank() : world.rank() - 1;
    if (lower < 0 || lower + 1 >= world.size()) continue;
    auto ended = std::make_shared<std::atomic<bool>>(false);
    tests.push_back(std::make_unique<SelfTest>(
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
    TORCH_CHECK_VALUE(asked == Transfers::kTested, text,
                      "; choose Transfers::kHost");
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
