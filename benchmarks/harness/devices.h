// The devices of a run, of any type that LibTorch knows, and the memory that
// training uses on them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// The error of an experiment that needs more devices than the machine has. The
// table skips the experiment and goes on.
class MissingDevices : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns a device per partition: the first ones of `devices`. If `devices` is
// a single CPU, all partitions get it.
//
// Throws MissingDevices if there are fewer devices than partitions.
std::vector<c10::Device> devices_for(int64_t partitions,
                                     const std::vector<c10::Device>& devices);

// Sets the devices of each row to devices_for() its partitions, or why it is
// left out.
void set_devices(const std::vector<c10::Device>& devices,
                 std::vector<Outcome>* rows);

// Returns the memory in LibTorch's caches to the accelerators.
void release_memory();

// The tensors that are kept from step to step.
struct LastingTensors {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> optimizer_state;
};

// Returns the bytes of the lasting tensors that are on `device`, by kind.
// `peak` and the other members for temporary memory are not set. Gradients
// count with the bytes of the trainable parameters, although steps free them. A
// tensor that is listed twice counts once.
DeviceMemory lasting_on(const c10::Device& device,
                        const LastingTensors& lasting);

// A measurement of memory that starts when the object is made. Bytes that the
// devices held before do not count. On an accelerator, the figures come from
// LibTorch's caching allocator, which rounds each tensor up to its block size.
// On the CPU, a counting allocator replaces LibTorch's for the rest of the
// process.
//
// Only one may exist at a time. Threads: Only the thread that made the object
// may call its methods, while no other thread uses the devices.
class MemoryWatch {
 public:
  // `devices`: the devices to measure; one may be listed several times.
  explicit MemoryWatch(const std::vector<c10::Device>& devices);

  // Resets the peaks to the bytes held now. Call it after the model has been
  // built and before the steps.
  void reset_peaks() const;

  // Waits for the devices and returns an entry per device, in the order in
  // which the constructor's `devices` first list them. Partitions on one device
  // share an entry; all partitions on the CPU do. `boundary` and `transient`
  // are not set. The lasting memory is that of lasting_on().
  std::vector<DeviceMemory> read(const LastingTensors& lasting) const;

 private:
  std::vector<c10::Device> devices_;  // each once
  std::vector<int64_t> base_;         // bytes held by each at construction
};

// Returns the devices with the number of partitions on each, in order: "cuda:0
// x 2, cuda:1". A device with one partition has no number: "cpu".
std::string devices_text(const std::vector<c10::Device>& devices);

}  // namespace gpipe::benchmarks
