// Direct transfers between simulated accelerators of several processes, with
// the interface of NCCL. Each transfer is a copy to the host, a Gloo message,
// and a copy from the host, on a thread of its own.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::testing {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Work that is complete when `part` has run. `part` may throw.
class Later final : public c10d::Work {
 public:
  template <typename Part>
  Later(WorkPtr inner, Part part)
      : inner_(std::move(inner)),
        done_(std::async(std::launch::async, [inner = inner_, part] {
          if (!inner->wait()) throw std::runtime_error("it was aborted");
          part();
        })) {}
  ~Later() override {
    if (done_.valid()) done_.wait();
  }

  bool isCompleted() override {
    if (!done_.valid()) return true;
    if (done_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return false;
    }
    try {
      done_.get();
    } catch (...) {
      error_ = std::current_exception();
    }
    return true;
  }
  std::exception_ptr exception() const override { return error_; }
  void synchronize() override {}
  void abort() override { inner_->abort(); }

 private:
  const WorkPtr inner_;
  std::future<void> done_;
  std::exception_ptr error_;
};

class HostedGroup final : public c10d::Backend {
 public:
  HostedGroup(c10::intrusive_ptr<c10d::Store> store, int rank,
              std::chrono::milliseconds timeout)
      : c10d::Backend(rank, 2), store_(store) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(
        c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank,
                                                        2, options);
  }

  const std::string getBackendName() const override { return "hosted"; }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    // The copy comes after the work of the current stream.
    std::vector<at::Tensor> bytes{tensors[0].cpu()};
    return c10::make_intrusive<Later>(gloo_->send(bytes, to, tag),
                                      [bytes] { (void)bytes; });
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    const at::Tensor to = tensors[0];
    std::vector<at::Tensor> bytes{
        at::empty(to.sizes(), to.options().device(c10::kCPU))};
    const internal::Event allocated = internal::Event::record(to.device());
    return c10::make_intrusive<Later>(
        gloo_->recv(bytes, from, tag), [to, bytes, allocated] {
          const auto stream = internal::new_stream(to.device());
          const internal::StreamScope scope(stream);
          allocated.wait(to.device());
          to.copy_(bytes[0]);
          stream->synchronize();
        });
  }

  // Returns when the other end shuts down, too, or when this one is aborted.
  // NCCL may wait for the other end without a limit.
  void shutdown() override {
    store_->set(closed(getRank()), std::vector<uint8_t>());
    while (!aborted_ && !store_->check({closed(1 - getRank())})) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  void abort() override { aborted_ = true; }

 private:
  static std::string closed(int rank) {
    return "closed by " + std::to_string(rank);
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<bool> aborted_{false};
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

class SimulatedBackend final : public internal::DeviceTransportBackend {
 public:
  Offer offer(const c10::Device& device) const override {
    return {"", "simulated", device.str()};
  }
  c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store> store, int rank, const c10::Device&,
      std::chrono::milliseconds timeout) const override {
    return c10::make_intrusive<HostedGroup>(std::move(store), rank, timeout);
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  internal::register_device_transport(c10::kHPU,
                                      std::make_unique<SimulatedBackend>());
  return true;
}();

}  // namespace
}  // namespace gpipe::testing
