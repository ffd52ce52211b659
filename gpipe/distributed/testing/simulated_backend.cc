// Direct transfers between simulated accelerators of several processes, with
// the interface of NCCL and what is awkward about it:
// - A transfer occupies a stream of the device from its launch until its bytes
//   have come, also for those who wait for the whole device.
// - A communicator connects in its first transfer, without a deadline. The host
//   waits meanwhile.
// - Two communicators of a device are not used at the same time. Here that is
//   an error.
// - A shutdown waits for the other end. So does an abort of a communicator that
//   is connected, unless the process of the other end has ended. An abort also
//   waits for the whole device, since it frees memory there. A communicator
//   that is dropped without either shuts down.
// The bytes travel by Gloo groups of two. Collective operations add up from the
// last member to the first.
#include "gpipe/distributed/testing/simulated_backend.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/backends.h"
#include "gpipe/distributed/world/gloo_group.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::testing {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Called by connect() of a group, after the host has begun to wait.
std::function<void()> on_connect;

Defect defect = Defect::kNone;
bool shares_devices = false;
std::atomic<int> connections{0};  // of this process, begun

// The life of another process of this machine.
class Process {
 public:
  explicit Process(pid_t pid)
      : descriptor_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}
  ~Process() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool ended() const {
    pollfd ended{descriptor_, POLLIN, 0};
    return descriptor_ < 0 || ::poll(&ended, 1, /*timeout=*/0) != 0;
  }

 private:
  const int descriptor_;
};

// Work on a stream.
class StreamWork final : public c10d::Work {
 public:
  bool isCompleted() override {
    asked_ = true;
    return end_ && end_->reached();
  }
  // Returns whether isCompleted() has been called.
  bool is_asked() const { return asked_; }
  std::exception_ptr exception() const override { return error_; }
  // The host has seen the end, so that all later work comes after it.
  void synchronize() override { simulated::Simulation::get().host_wait(*end_); }

  // Called on the stream.
  void fail(std::exception_ptr error) { error_ = std::move(error); }
  // Called at the launch. `end`: when the work is done.
  void set_end(std::shared_ptr<simulated::Mark> end) { end_ = std::move(end); }

 private:
  std::atomic<bool> asked_{false};
  std::exception_ptr error_;  // written before the end
  std::shared_ptr<simulated::Mark> end_;
};

// The number of transfers of this process under way, which has one device.
std::atomic<int> under_way{0};

class HostedGroup final : public c10d::Backend {
 public:
  HostedGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
              const c10::Device& device, std::chrono::milliseconds timeout)
      : c10d::Backend(rank, size),
        store_(std::move(store)),
        device_(device),
        timeout_(timeout),
        stream_(
            c10::impl::VirtualGuardImpl(device.type())
                .getStreamFromGlobalPool(
                    device,
                    internal::DeviceTransportBackend::kHighPriorityStreams)) {}
  ~HostedGroup() override {
    try {
      shutdown();
    } catch (const std::exception&) {
      // The store is gone.
    }
  }

  const std::string getBackendName() const override { return "hosted"; }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return launch("a direct send", tensors[0], /*write=*/false,
                  [this, to, tag](const at::Tensor& memory) {
                    std::vector<at::Tensor> bytes{memory.clone()};
                    finish(hosts_->send(bytes, to, tag));
                  });
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return launch("a direct receive", tensors[0], /*write=*/true,
                  [this, from, tag](const at::Tensor& memory) {
                    std::vector<at::Tensor> bytes{at::empty_like(memory)};
                    finish(hosts_->recv(bytes, from, tag));
                    if (defect == Defect::kWrongBytes) bytes[0][-1] += 1;
                    memory.copy_(bytes[0]);
                  });
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions&) override {
    return launch(
        "a direct all-reduce", tensors[0], /*write=*/true,
        [this](const at::Tensor& memory) { memory.copy_(sum_of_all(memory)); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions&) override {
    if (in.numel() != getSize() * out.numel()) {
      throw std::runtime_error("the parts have different sizes");
    }
    return launch(
        "a direct reduce-scatter", out, /*write=*/true,
        [this, in](const at::Tensor& memory) {
          memory.copy_(
              sum_of_all(simulated::host_alias(in))
                  .narrow(0, getRank() * memory.numel(), memory.numel()));
        },
        in);
  }

  void shutdown() override {
    if (connected_ && !aborted_ && !closed_) {
      say_and_wait("closed", /*until_aborted=*/true);
    }
    closed_ = true;
  }

  void abort() override {
    aborted_ = true;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (under_way_ && defect != Defect::kKeepsReceives) under_way_->abort();
    }
    if (connected_) hosts_->stop_connecting();
    if (!connected_ || closed_) return;
    say_and_wait("aborted", /*until_aborted=*/false);
    const c10::DeviceGuard on_device(device_);
    c10::impl::VirtualGuardImpl(device_.type())
        .synchronizeDevice(device_.index());
  }

 private:
  using Run = std::function<void(const at::Tensor& memory)>;

  static std::string name(const char* what, int rank) {
    return what + (" by " + std::to_string(rank));
  }

  // Blocks until all other members say the same, or their processes have ended.
  void say_and_wait(const char* what, bool until_aborted) {
    store_->set(name(what, getRank()), std::vector<uint8_t>());
    for (const auto& [rank, process] : peers_) {
      while (!store_->check({name(what, rank)})) {
        if (until_aborted ? aborted_.load() : process.ended()) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  }

  // Returns the sum of the tensors of all members, which have one size. Throws
  // if the group is aborted.
  at::Tensor sum_of_all(const at::Tensor& mine) {
    std::vector<at::Tensor> bytes{mine.clone()};
    std::vector<WorkPtr> sends;
    for (const auto& [rank, process] : peers_) {
      sends.push_back(hosts_->send(bytes, rank, /*tag=*/0));
    }
    at::Tensor sum;
    for (int rank = getSize() - 1; rank >= 0; --rank) {
      std::vector<at::Tensor> theirs{at::empty_like(bytes[0])};
      if (rank == getRank()) {
        theirs = bytes;
      } else {
        finish(hosts_->recv(theirs, rank, /*tag=*/0));
      }
      sum = sum.defined() ? sum.add_(theirs[0]) : theirs[0].clone();
    }
    for (const WorkPtr& send : sends) finish(send);
    return sum;
  }

  // Waits for `transfer`; throws if it fails or is aborted.
  void finish(const WorkPtr& transfer) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      under_way_ = transfer;
    }
    if (aborted_ && defect != Defect::kKeepsReceives) transfer->abort();
    const bool done = transfer->wait();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      under_way_ = nullptr;
    }
    if (!done || aborted_) throw std::runtime_error("it was aborted");
  }

  // Launches a transfer of `bytes` after the work of the current stream.
  // `read`: what else it reads; undefined if nothing.
  WorkPtr launch(const char* what, const at::Tensor& bytes, bool write,
                 const Run& run, const at::Tensor& read = {}) {
    if (under_way.fetch_add(1) > 0) {
      --under_way;
      throw std::runtime_error(
          "two communicators of one device are used at the same time");
    }
    try {
      connect();
    } catch (const std::exception&) {
      --under_way;
      throw;
    }
    auto work = c10::make_intrusive<StreamWork>();
    const auto before = internal::Event::record(device_);
    const internal::StreamScope scope(stream_);
    before.wait(device_);
    // ProcessGroupNCCL, too, keeps the memory until the transfer has ended,
    // also if nobody waits for that.
    internal::record_stream(bytes, device_);
    std::vector<simulated::Access> accesses{simulated::access(bytes, write)};
    if (read.defined()) {
      internal::record_stream(read, device_);
      accesses.push_back(simulated::access(read, /*write=*/false));
    }
    auto self =
        c10::intrusive_ptr<HostedGroup>::unsafe_reclaim_from_nonowning(this);
    simulated::Simulation::get().enqueue(
        stream_,
        {what, accesses, [self, work, run, bytes] {
           try {
             while (defect == Defect::kNeedsHost && !work->is_asked()) {
               if (self->aborted_) throw std::runtime_error("it was aborted");
               std::this_thread::sleep_for(std::chrono::milliseconds(1));
             }
             run(simulated::host_alias(bytes));
           } catch (...) {
             work->fail(std::current_exception());
           }
           --under_way;
         }});
    work->set_end(simulated::Simulation::get().record(stream_));
    return work;
  }

  // Blocks until the other end connects, too. Throws if this end is aborted.
  void connect() {
    if (connected_) return;
    if (on_connect) on_connect();
    store_->set(name("process", getRank()), std::to_string(::getpid()));
    // As with NCCL, one end waits in the store for an identifier of the other.
    if (getRank() == 0) store_->set("identifier", "1");
    store_->get("identifier");
    const bool is_second = connections.fetch_add(1) == 1;
    const bool arrives = defect != Defect::kOneDirection || !is_second;
    if (arrives && store_->add("arrived", 1) == getSize()) decide("connect");
    while (!store_->check({"decision"})) {
      if (aborted_) decide("abort");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (store_->get_to_str("decision") != "connect") {
      throw std::runtime_error("it was aborted");
    }
    hosts_ = c10::make_intrusive<internal::GlooGroup>(
        store_, internal::gloo_device("127.0.0.1"), getRank(), getSize(),
        timeout_);
    for (int rank = 0; rank < getSize(); ++rank) {
      if (rank == getRank()) continue;
      peers_.try_emplace(rank,
                         std::stoi(store_->get_to_str(name("process", rank))));
    }
    connected_ = true;
  }

  // The first decision counts for both ends, so that either both connect or
  // none does.
  void decide(const std::string& decision) {
    store_->compareSet("decision", "", decision);
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::Device device_;
  const std::chrono::milliseconds timeout_;
  const c10::Stream stream_;
  std::atomic<bool> connected_{false}, aborted_{false}, closed_{false};
  // Made by the first transfer, before `connected_` is set.
  c10::intrusive_ptr<internal::GlooGroup> hosts_;
  std::map<int, Process> peers_;  // the other members

  std::mutex mutex_;
  WorkPtr under_way_;
};

class SimulatedBackend final : public internal::DeviceTransportBackend {
 public:
  std::string name() const override { return "simulated"; }

  Offer offer(const c10::Device& device) const override {
    return {"", "simulated", device.str(),
            shares_devices ? "" : "give each rank a device of its own"};
  }
  c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store> store, int rank, int size,
      const c10::Device& device,
      std::chrono::milliseconds timeout) const override {
    return c10::make_intrusive<HostedGroup>(std::move(store), rank, size,
                                            device, timeout);
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  internal::register_backend(c10::kHPU, std::make_unique<SimulatedBackend>());
  return true;
}();

}  // namespace

void set_defect(Defect value) { defect = value; }
void set_shares_devices(bool shares) { shares_devices = shares; }

void set_on_connect(std::function<void()> function) {
  on_connect = std::move(function);
}

}  // namespace gpipe::testing
