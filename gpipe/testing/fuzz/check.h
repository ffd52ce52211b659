// What has to be true of a parser, whatever it is given: for fuzz targets, with
// libFuzzer and without.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "gpipe/testing/allocation_meter.h"

namespace gpipe::testing {

// Ends the process, saying `what`, unless it `holds`.
void fuzz_check(bool holds, const char* what);

// The bytes that a parser may take for an input of so many bytes.
struct MemoryLimit {
  int64_t per_byte = 0;
  int64_t at_least = 0;
};

struct FuzzLimits {
  // Of a single allocation: a list of what is 16 times as large as its text,
  // an error's text, a file's buffer.
  MemoryLimit largest{16, 1 << 14};
  // Of all that is held at a time.
  MemoryLimit held{160, 1 << 16};
};

// Of all calls of fuzz_parser() so far. Threads: the one that calls it.
struct FuzzCounts {
  int64_t parsed = 0;
  int64_t refused = 0;
};
FuzzCounts& fuzz_counts();

namespace detail {
void check_memory(const AllocationMeter& meter, std::size_t input_size,
                  const FuzzLimits& limits);
}  // namespace detail

// Calls parse(), which returns something or throws a Refusal, and nothing else,
// within the limits of memory; and then check() with what was returned, where
// nothing is allowed to throw. Anything else ends the process.
template <typename Refusal, typename Parse, typename Check>
void fuzz_parser(std::size_t input_size, const FuzzLimits& limits,
                 const Parse& parse, const Check& check) {
  std::optional<decltype(parse())> parsed;
  {
    const AllocationMeter meter;
    try {
      parsed.emplace(parse());
    } catch (const Refusal&) {
    }
    detail::check_memory(meter, input_size, limits);
  }
  ++(parsed ? fuzz_counts().parsed : fuzz_counts().refused);
  if (parsed) check(*parsed);
}

// What libFuzzer gives.
inline std::string_view fuzz_text(const uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace gpipe::testing
