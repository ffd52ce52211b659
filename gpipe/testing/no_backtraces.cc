// Turns off the backtraces of LibTorch's errors in programs that are linked
// with this file. A backtrace takes longer than most parsers take to refuse an
// input.
#include <c10/util/Logging.h>

#include <string>

namespace {

[[maybe_unused]] const bool set = [] {
  c10::SetStackTraceFetcher([] { return std::string(); });
  return true;
}();

}  // namespace
