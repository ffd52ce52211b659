// Checks the properties that a parser must have on any input. For fuzz targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "gpipe/testing/allocation_meter.h"

namespace gpipe::testing {

// Ends the process with the text `what` unless `holds`.
void fuzz_check(bool holds, const char* what);

// The memory that a parser may use for an input of n bytes: per_byte * n +
// at_least.
struct MemoryLimit {
  int64_t per_byte = 0;
  int64_t at_least = 0;
};

// The memory limits of a parser.
struct FuzzLimits {
  // The limit of a single allocation. The default allows a list 16 times as
  // large as its text, the text of an error, and a file's buffer.
  MemoryLimit largest{16, 1 << 14};
  // The limit of all memory held at the same time.
  MemoryLimit held{160, 1 << 16};
};

namespace detail {
// Count an input of `size` bytes that was parsed, and one that was refused.
void count_parsed(std::size_t size);
void count_refused();

void check_memory(const AllocationMeter& meter, std::size_t input_size,
                  const FuzzLimits& limits);
}  // namespace detail

// Calls parse(), which must return a value or throw a Refusal, within the
// memory limits. Then calls check() with the value, which must not throw.
// Anything else ends the process. In a test, the process also fails at its end
// if nearly no input was parsed, or nearly none was refused: then only one half
// of the parser was tested.
template <typename Refusal, typename Parse, typename Check>
void fuzz_parser(std::size_t input_size, const FuzzLimits& limits,
                 const Parse& parse, const Check& check) {
  std::optional<decltype(parse())> parsed;
  {
    const AllocationMeter meter;
    try {
      parsed.emplace(parse());
    } catch (const Refusal&) {
      detail::count_refused();
    }
    detail::check_memory(meter, input_size, limits);
  }
  if (!parsed) return;
  detail::count_parsed(input_size);
  check(*parsed);
}

// Returns the input of libFuzzer as text.
inline std::string_view fuzz_text(const uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace gpipe::testing

// Changes the `size` bytes at `data`, which has space for `max_size` bytes.
// Returns the new size. The building block of a target's own mutator, which
// defines LLVMFuzzerCustomMutator().
extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size,
                                        std::size_t max_size);
