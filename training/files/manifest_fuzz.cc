// Parses arbitrary bytes as a manifest.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "gpipe/base/crc32c.h"
#include "gpipe/testing/fuzz_check.h"
#include "training/files/manifest.h"
#include "training/files/tensor_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using gpipe::internal::Manifest;
  const std::string_view text = gpipe::testing::fuzz_text(data, size);
  const auto parse = [&] {
    try {
      return gpipe::internal::parse_manifest(text);
    } catch (const c10::ValueError&) {  // a later version of the format
      throw gpipe::internal::Damage("version");
    }
  };
  gpipe::testing::fuzz_parser<gpipe::internal::Damage>(
      size, {}, parse, [](const gpipe::internal::Manifest& manifest) {
        const std::string written = gpipe::internal::manifest_text(manifest);
        gpipe::testing::fuzz_check(
            gpipe::internal::manifest_text(
                gpipe::internal::parse_manifest(written)) == written,
            "what is written is read again");
      });
  return 0;
}

// Writes a correct checksum at the end, except for one in eight inputs.
extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size,
                                               std::size_t max_size,
                                               unsigned int seed) {
  constexpr char kEnding[] = ",\n \"crc32c\": \"%08x\"\n}\n";
  constexpr std::size_t kEnd = sizeof(",\n \"crc32c\": \"01234567\"\n}\n") - 1;
  if (seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  size = LLVMFuzzerMutate(data, size - std::min(size, kEnd), max_size - kEnd);
  char end[kEnd + 1];
  std::snprintf(end, sizeof end, kEnding, gpipe::internal::crc32c(data, size));
  std::copy(end, end + kEnd, data + size);
  return size + kEnd;
}
