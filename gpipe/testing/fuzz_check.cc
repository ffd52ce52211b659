#include "gpipe/testing/fuzz_check.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace gpipe::testing {
namespace {

// libFuzzer reads these counters like those of instrumented code: it goes on
// with an input that sets a new one, here with a parsed input of a new size.
// Most targets that use LibTorch have no other coverage. `volatile`: nothing
// here reads them.
constexpr std::size_t kSizes = 2048;
__attribute__((
    section("__libfuzzer_extra_counters"))) volatile uint8_t sizes[kSizes];

int64_t parsed = 0;
int64_t refused = 0;

void check_counts() {
  const int64_t few = (parsed + refused) / 1000;
  std::fprintf(stderr, "parsed %lld, refused %lld\n",
               static_cast<long long>(parsed), static_cast<long long>(refused));
  if (parsed >= few && refused >= few) return;
  std::fprintf(stderr,
               "fewer than %lld of one kind: the corpus and the target's "
               "mutator should produce both\n",
               static_cast<long long>(few));
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

void fuzz_check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_check: this does not hold: %s\n", what);
  std::abort();
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

void count_parsed(std::size_t size) {
  ++parsed;
  sizes[size % kSizes] = 1;
}

void count_refused() { ++refused; }

void check_memory(const AllocationMeter& meter, std::size_t input_size,
                  const FuzzLimits& limits) {
  check_at_most("largest allocation", meter.largest(), limits.largest,
                input_size);
  check_at_most("memory held", meter.peak(), limits.held, input_size);
}

}  // namespace detail
}  // namespace gpipe::testing

// libFuzzer calls this function before it reads its flags. In a test, a failing
// input is written to the folder that Bazel keeps.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const char* const folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  if (folder == nullptr) return 0;
  std::atexit(gpipe::testing::check_counts);
  static std::string flag = std::string("-artifact_prefix=") + folder + "/";
  static std::vector<char*> arguments(*argv, *argv + *argc);
  arguments.push_back(flag.data());
  *argc = static_cast<int>(arguments.size());
  *argv = arguments.data();
  return 0;
}
