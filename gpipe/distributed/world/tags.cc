#include "gpipe/distributed/world/tags.h"

#include "gpipe/base/bytes/crc32c.h"

namespace gpipe::internal {
namespace {

// The number of bits that name the channel; the bits above depend on the
// content.
constexpr int kTagBits = 15, kContentBits = 16;

}  // namespace

int Tags::payload_of(int64_t bytes, at::ScalarType type) const {
  const int64_t content[] = {bytes, static_cast<int64_t>(type)};
  const uint32_t crc = crc32c(content, sizeof content);
  const int folded = static_cast<int>((crc ^ (crc >> 16)) &
                                      ((uint32_t{1} << kContentBits) - 1));
  return (folded << kTagBits) | payload;
}

}  // namespace gpipe::internal
