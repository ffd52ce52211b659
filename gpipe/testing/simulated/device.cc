// What LibTorch requires of a device type: a guard, hooks and an allocator. HPU
// is a type that the wheel does not support and that Module::to() accepts. In
// C++, Module::to() refuses PrivateUse1, which is meant for this purpose.
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <memory>

#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {
namespace {

// The object behind the void* of c10::Event.
struct Event {
  std::shared_ptr<Mark> mark;
};

Simulation& simulation() { return Simulation::get(); }

// A visit of another device. LibTorch's guard for CUDA makes one for most
// operations of an event. Its end sets the device of before in a way that makes
// a context there; the end of a c10::DeviceGuard makes none.
class Visit {
 public:
  explicit Visit(c10::DeviceIndex device)
      : before_(exchange_current_device(device)) {}
  ~Visit() { exchange_current_device(before_); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  const c10::DeviceIndex before_;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return {kDeviceType, exchange_current_device(index_of(device))};
  }
  c10::Device getDevice() const override {
    return {kDeviceType, current_device()};
  }
  void setDevice(c10::Device device) const override {
    exchange_current_device(index_of(device));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    restore_current_device(index_of(device));
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {kDeviceType, index_of(device)});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device,
                                      bool high_priority) const override {
    return simulation().pool_stream(index_of(device), high_priority);
  }
  c10::Stream getNewStream(c10::Device device,
                           int /*priority*/) const override {
    return simulation().new_stream(index_of(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_current_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return simulation().idle(stream);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    simulation().host_wait(stream);
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    if (device < 0) device = current_device();
    const Visit visit(device);
    simulation().host_wait(device);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    simulation().failing(Operation::kEvent).pass();
    const Visit visit(stream.device_index());
    if (!*event) {
      *event = new Event();
      simulation().count_event();
    }
    simulation().count_record();
    simulation().pay_for_event();
    static_cast<Event*>(*event)->mark = simulation().record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    simulation().failing(Operation::kEvent).pass();
    const Visit visit(stream.device_index());
    simulation().count_stream_wait();
    simulation().pay_for_event();
    simulation().block(stream, static_cast<Event*>(event)->mark);
  }
  // CUDA may make a context on the thread's device in these two.
  bool queryEvent(void* event) const override {
    make_context(current_device());
    return !event || static_cast<Event*>(event)->mark->reached();
  }
  void synchronizeEvent(void* event) const override {
    make_context(current_device());
    if (event) simulation().host_wait(*static_cast<Event*>(event)->mark);
  }
  double elapsedTime(void* first, void* second,
                     c10::DeviceIndex device) const override {
    const Visit visit(device);
    const std::chrono::duration<double, std::milli> passed =
        static_cast<Event*>(second)->mark->time() -
        static_cast<Event*>(first)->mark->time();
    return passed.count();
  }
  void destroyEvent(void* event,
                    c10::DeviceIndex device) const noexcept override {
    if (!event) return;
    const Visit visit(device);
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data,
                             const c10::Stream& stream) const override {
    Memory::get().recordStream(data, stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    if (!device.has_index()) return current_device();
    check_index(device.index());
    return device.index();
  }
};
C10_REGISTER_GUARD_IMPL(HPU, Guard)

struct Hooks : at::HPUHooksInterface {
  explicit Hooks(at::HPUHooksArgs) {}
  void init() const override { Memory::get().init(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasHPU() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return has_context(device);
  }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    exchange_current_device(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<GeneratorImpl>(device < 0 ? current_device()
                                                        : device);
  }
};

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(kDeviceType, &Memory::get());
  return true;
}();

}  // namespace
}  // namespace gpipe::simulated

namespace at {
C10_REGISTER_CLASS(HPUHooksRegistry, HPUHooks, gpipe::simulated::Hooks)
}
