// Parses arbitrary bytes as a list of devices.
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/testing/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string text(gpipe::testing::fuzz_text(data, size));

  // A comma creates a string of 32 bytes, and a vector doubles when it grows.
  gpipe::testing::FuzzLimits limits;
  limits.largest.per_byte = 64;

  gpipe::testing::fuzz_parser<std::invalid_argument>(
      size, limits, [&] { return gpipe::parse_devices(text); },
      [&](const std::vector<c10::Device>& devices) {
        gpipe::testing::fuzz_check(
            devices.size() == gpipe::split_list(text).size(),
            "a device for each part");
      });
  return 0;
}
