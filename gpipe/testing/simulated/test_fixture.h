// Helpers for the tests of the simulated accelerators.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {

inline c10::Device hpu(int index) {
  return c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(index));
}

inline c10::Stream default_stream(int device) {
  return c10::impl::VirtualGuardImpl(kDeviceType).getDefaultStream(hpu(device));
}

inline c10::Stream new_stream(int device) {
  return c10::impl::VirtualGuardImpl(kDeviceType).getNewStream(hpu(device));
}

// A task that blocks a stream until open() is called or the object goes out of
// scope.
class Gate {
 public:
  explicit Gate(const c10::Stream& stream) {
    Simulation::get().enqueue(
        stream,
        {"a gate", {}, [way = way_.get_future().share()] { way.wait(); }});
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    if (!std::exchange(is_open_, true)) way_.set_value();
  }

 private:
  std::promise<void> way_;
  bool is_open_ = false;
};

// Returns the current contents of the memory, without waiting. For work that is
// done or blocked.
inline std::vector<float> memory(const at::Tensor& tensor) {
  const at::Tensor host =
      (is_simulated(tensor) ? host_alias(tensor) : tensor).contiguous();
  return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
}

inline std::vector<float> values(const at::Tensor& tensor) {
  return memory(tensor.cpu());
}

// The fixture of these tests. Every test has its own delays. It must not leave
// an error or a race that it has not taken.
class SimulatedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static std::uint64_t seed = 0;
    set_delays({++seed, /*probability=*/0.25, /*seconds=*/100e-6});
    take_trace();
  }
  void TearDown() override {
    try {
      synchronize();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "an operator failed: " << error.what();
    }
    EXPECT_THAT(take_races(), ::testing::IsEmpty());
    set_copy_cost({});
    set_host_costs({});
    for (int k = 0; k < kDevices; ++k) set_memory_limit(k, std::nullopt);
    empty_cache();
  }
};

}  // namespace gpipe::simulated
