// Decodes any bytes as a header and its overflow.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/testing/fuzz_check.h"

namespace gpipe::internal {
namespace {

// Runs decode(). An internal assertion is a c10::Error, too, but counts as a
// bug.
Message decoded(const uint8_t* data, std::size_t size) {
  try {
    return decode(data, static_cast<int64_t>(size));
  } catch (const c10::Error& error) {
    testing::fuzz_check(
        std::strstr(error.what_without_backtrace(), "INTERNAL") == nullptr,
        "no assertion fails");
    throw;
  }
}

void check(const Message& message, const uint8_t* data, std::size_t size) {
  const std::vector<uint8_t> again = encode(message);
  testing::fuzz_check(std::equal(again.begin(), again.end(), data, data + size),
                      "a message that is read is written alike");
  testing::fuzz_check(is_as_predicted(data) == message.as_predicted,
                      "what follows is what the message says");
  for (const TensorSpec& spec : message.tensors) {
    testing::fuzz_check(spec.bytes() >= 0, "a tensor has a size");
  }
  check_expected(message.id, message.id);
}

// Makes the length and the checksums right, like a sender of nonsense would.
void seal(uint8_t* data, std::size_t size) {
  const auto put = [&](std::size_t at, uint32_t value) {
    std::memcpy(data + at, &value, sizeof(value));
  };
  put(12, static_cast<uint32_t>(size));
  put(20, crc32c(data + kHeaderBytes, size - kHeaderBytes));
  put(16, crc32c(data + 20, kHeaderBytes - 20, crc32c(data, 16)));
}

}  // namespace
}  // namespace gpipe::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe::internal;  // NOLINT: parser and checks
  // 4 bytes of input can become a TensorSpec.
  gpipe::testing::FuzzLimits limits;
  limits.largest.per_byte = 2 * sizeof(TensorSpec) / 4;
  gpipe::testing::fuzz_parser<c10::Error>(
      size, limits, [&] { return decoded(data, size); },
      [&](const Message& message) { check(message, data, size); });
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size,
                                               std::size_t max_size,
                                               unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0) return size;
  const auto header = static_cast<std::size_t>(gpipe::internal::kHeaderBytes);
  if (size < header && max_size >= header) {
    std::fill(data + size, data + header, uint8_t{0});
    size = header;
  }
  if (size >= header) gpipe::internal::seal(data, size);
  return size;
}
