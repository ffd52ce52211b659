// A fuzz target with defects that the driver must find. Its parser accepts "F"
// and a digit; an error is an int.
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "gpipe/testing/fuzz/check.h"

namespace {

int endless(int depth) {
  volatile char room[1024] = {};
  return depth == 0 ? 0 : endless(depth + 1) + room[depth % 1024];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view text = gpipe::testing::fuzz_text(data, size);
  const char* const variable = std::getenv("FAULT");
  const std::string_view fault = variable ? variable : "";
  const auto parse = [&] {
    if (size != 2 || text[0] != 'F' || text[1] < '0' || '9' < text[1]) throw 1;
    if (text == "F7") {
      if (fault == "abort") std::abort();
      if (fault == "exception") throw std::runtime_error("not documented");
      if (fault == "segmentation") std::raise(SIGSEGV);
      if (fault == "recursion") return std::to_string(endless(1));
      if (fault == "memory") return std::string(1 << 20, '7');
    }
    return std::string(text);
  };
  if (fault == "refuses all") {
    gpipe::testing::fuzz_parser<int>(
        size, {}, [&]() -> int { throw 1; }, [](int) {});
    return 0;
  }
  gpipe::testing::fuzz_parser<int>(size, {}, parse, [&](const auto& parsed) {
    gpipe::testing::fuzz_check(fault != "oracle" || parsed != "F7",
                               "the parsed text is not F7");
  });
  return 0;
}
