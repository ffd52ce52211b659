// What training takes of the memory of the devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/harness/outcome.h"

namespace gpipe::benchmarks {

// The tensors that stay from step to step.
struct LastingTensors {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> optimizer_state;
};

// What of them is on `device`, without what comes and goes. Gradients count as
// held although they are given back between steps; a tensor that comes twice
// counts once.
DeviceMemory lasting_on(const c10::Device& device,
                        const LastingTensors& lasting);

// Counts from when it is made, above what the devices hold then. On an
// accelerator the figures are those of LibTorch's caching allocator, which
// rounds each tensor up to its blocks; on the CPU an allocator that counts
// takes the place of LibTorch's, for the rest of the process.
//
// One at a time; its methods are for the thread that made it, while no other
// one uses the devices.
class MemoryWatch {
 public:
  // Devices may repeat.
  explicit MemoryWatch(const std::vector<c10::Device>& devices);

  // Begins the peaks anew: before the steps, when a model has been built.
  void reset_peaks() const;

  // An entry per device, in the order in which they first came: partitions
  // that share a device, as all on the CPU do, share an entry. `boundary` is
  // not known. What stays is lasting_on().
  std::vector<DeviceMemory> read(const LastingTensors& lasting) const;

 private:
  std::vector<c10::Device> devices_;  // each once
  std::vector<int64_t> base_;         // bytes that were held before
};

// "cuda:0 x 2, cuda:1": how many partitions each has, in the order of the
// devices; "cpu" for a lone one.
std::string devices_text(const std::vector<c10::Device>& devices);

}  // namespace gpipe::benchmarks
