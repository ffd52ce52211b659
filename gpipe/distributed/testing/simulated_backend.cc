// Direct transfers between simulated accelerators of several processes, with
// the interface of NCCL and what is awkward about it:
// - A transfer occupies a stream of the device from its launch until its bytes
//   have come, also for those who wait for the whole device.
// - A communicator connects in its first transfer, without a deadline.
// - Two communicators of a device are not used at the same time. Here that is
// an
//   error.
// - A shutdown waits for the other end.
// The bytes travel by Gloo.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/tensor_memory.h"

namespace gpipe::testing {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Work on a stream.
class StreamWork final : public c10d::Work {
 public:
  bool isCompleted() override { return end_ && end_->reached(); }
  std::exception_ptr exception() const override { return error_; }
  // The host has seen the end, so that all later work comes after it.
  void synchronize() override { simulated::Simulation::get().host_wait(*end_); }
  void abort() override {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    if (inner_) inner_->abort();
  }

  bool aborted() const { return aborted_; }
  // Waits for `inner`; throws if it fails or is aborted.
  void finish(const WorkPtr& inner) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      inner_ = inner;
    }
    if (aborted_) inner->abort();
    if (!inner->wait() || aborted_) throw std::runtime_error("it was aborted");
  }
  // Called on the stream.
  void fail(std::exception_ptr error) { error_ = std::move(error); }
  // Called at the launch. `end`: when the work is done.
  void set_end(std::shared_ptr<simulated::Mark> end) { end_ = std::move(end); }

 private:
  std::mutex mutex_;
  WorkPtr inner_;
  std::atomic<bool> aborted_{false};
  std::exception_ptr error_;  // written before the end
  std::shared_ptr<simulated::Mark> end_;
};

// The number of transfers of this process under way, which has one device.
std::atomic<int> under_way{0};

class HostedGroup final : public c10d::Backend {
 public:
  HostedGroup(c10::intrusive_ptr<c10d::Store> store, int rank,
              const c10::Device& device, std::chrono::milliseconds timeout)
      : c10d::Backend(rank, 2),
        store_(std::move(store)),
        device_(device),
        timeout_(timeout),
        stream_(internal::new_stream(device)) {}

  const std::string getBackendName() const override { return "hosted"; }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return launch("a direct send", tensors[0], /*write=*/false,
                  [this, to, tag](StreamWork& work, const at::Tensor& memory) {
                    std::vector<at::Tensor> bytes{memory.clone()};
                    work.finish(gloo_->send(bytes, to, tag));
                  });
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return launch(
        "a direct receive", tensors[0], /*write=*/true,
        [this, from, tag](StreamWork& work, const at::Tensor& memory) {
          std::vector<at::Tensor> bytes{at::empty_like(memory)};
          work.finish(gloo_->recv(bytes, from, tag));
          memory.copy_(bytes[0]);
        });
  }

  // Returns when the other end shuts down, too, or when this one is aborted.
  // NCCL may wait for the other end without a limit.
  void shutdown() override {
    store_->set(name("closed by ", getRank()), std::vector<uint8_t>());
    while (!aborted_ && !store_->check({name("closed by ", 1 - getRank())})) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  void abort() override { aborted_ = true; }

 private:
  using Run = std::function<void(StreamWork&, const at::Tensor& memory)>;

  static std::string name(const char* what, int rank) {
    return what + std::to_string(rank);
  }

  // Launches a transfer after the work of the current stream.
  WorkPtr launch(const char* what, const at::Tensor& bytes, bool write,
                 const Run& run) {
    if (under_way.fetch_add(1) > 0) {
      --under_way;
      throw std::runtime_error(
          "two communicators of one device are used at the same time");
    }
    auto work = c10::make_intrusive<StreamWork>();
    const auto before = internal::Event::record(device_);
    const internal::StreamScope scope(stream_);
    before.wait(device_);
    auto self =
        c10::intrusive_ptr<HostedGroup>::unsafe_reclaim_from_nonowning(this);
    simulated::Simulation::get().enqueue(
        *stream_,
        {what, {simulated::access(bytes, write)}, [self, work, run, bytes] {
           try {
             self->connect(*work);
             run(*work, simulated::host_alias(bytes));
           } catch (...) {
             work->fail(std::current_exception());
           }
           --under_way;
         }});
    work->set_end(simulated::Simulation::get().record(*stream_));
    return work;
  }

  // Blocks until the other end connects, too.
  void connect(const StreamWork& work) {
    if (gloo_) return;
    store_->set(name("there is ", getRank()), std::vector<uint8_t>());
    while (!store_->check({name("there is ", 1 - getRank())})) {
      if (aborted_ || work.aborted())
        throw std::runtime_error("it was aborted");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->devices.push_back(
        c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, getRank(), 2,
                                                        options);
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::Device device_;
  const std::chrono::milliseconds timeout_;
  const std::optional<c10::Stream> stream_;
  std::atomic<bool> aborted_{false};
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;  // used by stream_ alone
};

class SimulatedBackend final : public internal::DeviceTransportBackend {
 public:
  Offer offer(const c10::Device& device) const override {
    return {"", "simulated", device.str()};
  }
  c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store> store, int rank,
      const c10::Device& device,
      std::chrono::milliseconds timeout) const override {
    return c10::make_intrusive<HostedGroup>(std::move(store), rank, device,
                                            timeout);
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  internal::register_device_transport(c10::kHPU,
                                      std::make_unique<SimulatedBackend>());
  return true;
}();

}  // namespace
}  // namespace gpipe::testing
