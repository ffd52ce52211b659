#include "gpipe/testing/fuzz/check.h"

#include <cstdio>
#include <cstdlib>

namespace gpipe::testing {

void fuzz_check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_check: this does not hold: %s\n", what);
  std::abort();
}

FuzzCounts& fuzz_counts() {
  static FuzzCounts counts;
  return counts;
}

namespace detail {
namespace {

void check_at_most(const char* what, int64_t value, const MemoryLimit& limit,
                   std::size_t input_size) {
  const int64_t most =
      limit.per_byte * static_cast<int64_t>(input_size) + limit.at_least;
  if (value <= most) return;
  std::fprintf(stderr,
               "%s: %lld bytes for an input of %zu bytes, allowed are %lld\n",
               what, static_cast<long long>(value), input_size,
               static_cast<long long>(most));
  std::abort();
}

}  // namespace

void check_memory(const AllocationMeter& meter, std::size_t input_size,
                  const FuzzLimits& limits) {
  check_at_most("largest allocation", meter.largest(), limits.largest,
                input_size);
  check_at_most("memory held", meter.peak(), limits.held, input_size);
}

}  // namespace detail
}  // namespace gpipe::testing
