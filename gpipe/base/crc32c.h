// Computes CRC-32C, for messages and files. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpipe::internal {

// Returns the CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `size` bytes.
// `so_far`: the CRC of the bytes before them. The result certainly differs if
// all changed bits lie within 32 bits in a row. Uses the processor's
// instruction if it exists (x86-64 with SSE 4.2). Thread-safe.
uint32_t crc32c(const void* bytes, std::size_t size, uint32_t so_far = 0);

namespace detail {

// Returns the same value without the instruction, on any processor.
uint32_t portable_crc32c(const void* bytes, std::size_t size,
                         uint32_t so_far = 0);

}  // namespace detail

}  // namespace gpipe::internal
