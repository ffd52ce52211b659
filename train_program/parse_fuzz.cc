// Parses arbitrary bytes as a list in a flag and as a name.
#include <c10/util/Exception.h>

#include <algorithm>

#include "gpipe/testing/fuzz/check.h"
#include "gpipe/text/lists.h"
#include "train_program/parse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe::train_program;  // NOLINT: parsers
  using gpipe::testing::fuzz_check;
  using gpipe::testing::fuzz_parser;
  const std::string text(gpipe::testing::fuzz_text(data, size));

  // A comma creates a string of 32 bytes, and a vector doubles when it grows.
  gpipe::testing::FuzzLimits limits;
  limits.largest.per_byte = 64;

  fuzz_parser<c10::ValueError>(
      size, limits, [&] { return parse_numbers("balance", text); },
      [&](const std::vector<int64_t>& numbers) {
        fuzz_check(parse_numbers("balance", gpipe::join(numbers)) == numbers,
                   "numbers are read as they were written");
      });
  fuzz_parser<c10::ValueError>(
      size, limits, [&] { return parse_devices(text); },
      [&](const std::vector<c10::Device>& devices) {
        fuzz_check(devices.size() == gpipe::split_list(text).size(),
                   "a device for each part");
      });
  fuzz_parser<c10::ValueError>(
      size, limits, [&] { return parse_checkpoint(text); },
      [&](gpipe::Checkpoint mode) {
        fuzz_check(to_string(mode) == text, "the mode is called so");
      });
  return 0;
}
