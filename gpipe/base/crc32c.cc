#include "gpipe/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace gpipe::internal {
namespace {

constexpr std::size_t kSlices = 8;
using Table = std::array<std::array<uint32_t, 256>, kSlices>;

// The table: [k][byte] is the contribution of `byte` k bytes later.
constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
    }
    table[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kSlices; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = table[k - 1][byte];
      table[k][byte] = (before >> 8) ^ table[0][before & 0xFF];
    }
  }
  return table;
}

constexpr Table kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(
    const void* bytes, std::size_t size, uint32_t so_far) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  uint64_t crc = static_cast<uint32_t>(~so_far);
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<uint32_t>(crc);
  for (; size > 0; --size, ++at) rest = _mm_crc32_u8(rest, *at);
  return ~rest;
}
#endif

}  // namespace

namespace detail {

uint32_t portable_crc32c(const void* bytes, std::size_t size, uint32_t so_far) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  uint32_t crc = ~so_far;
  for (; size >= kSlices; size -= kSlices, at += kSlices) {
    uint32_t next = 0;
    for (std::size_t k = 0; k < kSlices; ++k) {
      const uint32_t old = k < 4 ? crc >> (8 * k) : 0;
      next ^= kTable[kSlices - 1 - k][(old ^ at[k]) & 0xFF];
    }
    crc = next;
  }
  for (; size > 0; --size, ++at) {
    crc = (crc >> 8) ^ kTable[0][(crc ^ *at) & 0xFF];
  }
  return ~crc;
}

}  // namespace detail

uint32_t crc32c(const void* bytes, std::size_t size, uint32_t so_far) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_by_instruction(bytes, size, so_far);
#endif
  return detail::portable_crc32c(bytes, size, so_far);
}

}  // namespace gpipe::internal
