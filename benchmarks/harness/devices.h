// Which devices a run uses. Knows accelerators, but none by name.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

// An experiment asks for more devices than there are: it is left out.
class MissingDevices : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "0,1" (accelerators), "cuda:0,cuda:1", "cpu"; "" for those of the machine:
// every accelerator or, without one, the CPU. One may come several times, for
// partitions that share it. std::invalid_argument for a text
// that is none of these, or an accelerator that does not exist.
std::vector<c10::Device> parse_devices(const std::string& text);

// One per partition, the first of `devices`; a lone CPU serves them all.
std::vector<c10::Device> devices_for(int64_t partitions,
                                     const std::vector<c10::Device>& devices);

// Waits for all work given to the accelerators among `devices`.
void synchronize(const std::vector<c10::Device>& devices);

// Gives memory that LibTorch keeps for later back to the accelerators.
void release_memory();

}  // namespace gpipe::benchmarks
