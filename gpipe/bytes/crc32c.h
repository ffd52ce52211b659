// CRC-32C, for what is sent, and what is written to disks. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpipe {

// The CRC-32C (Castagnoli; RFC 3720, appendix B.4) of some bytes, going on from
// `so_far`, that of the bytes before them. It differs for sure if up to 32 bits
// in a row have changed. By the processor's instruction for it where there is
// one (x86-64 with SSE 4.2). Threads: pure function.
uint32_t crc32c(const void* bytes, std::size_t size, uint32_t so_far = 0);

namespace internal {

// The same, on any processor.
uint32_t portable_crc32c(const void* bytes, std::size_t size,
                         uint32_t so_far = 0);

}  // namespace internal

}  // namespace gpipe
