// LibTorch's errors know the stack that they come from. To find it out takes
// longer than most parsers take to refuse an input, so not in fuzz targets: who
// is linked with this does without.
#include <c10/util/Logging.h>

#include <string>

namespace {

[[maybe_unused]] const bool set = [] {
  c10::SetStackTraceFetcher([] { return std::string(); });
  return true;
}();

}  // namespace
