// Computes checksums (CRC-32C) of datasets and models. `so_far` is the checksum
// of everything before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {

// Returns the checksum of the elements' bytes, in order. Dtype and shape do not
// count. The tensor may be on any device; the call waits for the device.
// Threads: may be called from any thread while no other thread changes the
// tensor.
uint32_t checksum_of(const at::Tensor& tensor, uint32_t so_far = 0);

// Returns the checksum of the numbers. Thread-safe.
uint32_t checksum_of(const std::vector<int64_t>& numbers, uint32_t so_far = 0);
// Returns the checksum of a text and its final zero byte, so that {"ab", "c"}
// and {"a", "bc"} differ. Thread-safe.
uint32_t checksum_of(const std::string& name, uint32_t so_far = 0);

}  // namespace gpipe::data
