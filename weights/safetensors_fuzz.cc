// Any bytes as a safetensors file.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "weights/fuzz_driver.h"
#include "weights/safetensors.h"
#include "weights/safetensors_header.h"
#include "weights/testing/fixtures.h"
#include "weights/testing/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gpipe::testing::check_reader(size, [&] {
    gpipe::Safetensors file = gpipe::parse_safetensors(data, size);
    // Whatever has been read stands for bytes that are there.
    std::size_t bytes = 0;
    for (const auto& item : file.tensors) bytes += item.value().nbytes();
    if (bytes > size) {
      std::fprintf(stderr, "%zu bytes of tensors out of %zu\n", bytes, size);
      std::abort();
    }
    return std::move(file.tensors);
  });
  return 0;
}

namespace {

std::string length(uint64_t value) {
  std::string bytes;
  for (int k = 0; k < 8; ++k) {
    bytes.push_back(static_cast<char>(value >> (8 * k)));
  }
  return bytes;
}

}  // namespace

// The header's length: up to the last brace.
void gpipe::fuzz_repair(std::string& bytes) {
  const std::size_t last = bytes.rfind('}');
  if (last == std::string::npos || last < 8) return;
  bytes.replace(0, 8, length(last + 1 - 8));
}

std::vector<std::string> gpipe::fuzz_seeds() {
  const auto file = [](const SafetensorsHeader& header, std::size_t bytes) {
    const std::string json = safetensors_header_text(header);
    return length(json.size()) + json + std::string(bytes, '\x2a');
  };
  SafetensorsHeader several;
  several.metadata = {{"format", "pt"}, {"note", "\"\n\xc3\xbc"}};
  several.entries = {{"weight", at::kFloat, {2, 3}, 8, 32},
                     {"scalar", at::kLong, {}, 0, 8},
                     {"empty", at::kHalf, {0, 7}, 32, 32},
                     {"flags", at::kBool, {1, 3, 1}, 32, 35}};
  SafetensorsHeader large;
  large.entries = {{"a", at::kDouble, {40, 5}, 0, 1600}};
  return {std::string(testing::kSafetensorsFile), file(several, 35),
          file(large, 1600), file({}, 0)};
}
