// Checksums (CRC-32C) of what data and models are made of, each going on from
// that of what came before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {

// Of the elements' bytes, in order, on any device; not of type and sizes.
// Waits for the device. Threads: any, while nobody changes the tensor.
uint32_t checksum_of(const at::Tensor& tensor, uint32_t so_far = 0);

// Threads: pure functions.
uint32_t checksum_of(const std::vector<int64_t>& numbers, uint32_t so_far = 0);
// With its end, so that {"ab", "c"} are not {"a", "bc"}.
uint32_t checksum_of(const std::string& name, uint32_t so_far = 0);

}  // namespace gpipe::data
