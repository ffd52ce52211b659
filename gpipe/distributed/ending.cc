#include "gpipe/distributed/ending.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>

#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

constexpr std::size_t kBytesOfALoss = 2 * sizeof(double);  // loss and weight

}  // namespace

std::string Ending::encode() const {
  std::string bytes;
  put(bytes, static_cast<uint8_t>(drew));
  put(bytes, static_cast<int32_t>(replica));
  put(bytes, static_cast<int8_t>(type));
  put(bytes, static_cast<uint64_t>(losses.size()));
  for (const double each : losses) put(bytes, each);
  for (const double each : weights) put(bytes, each);
  return bytes;
}

Ending Ending::decode(const std::string& bytes) {
  Ending ending;
  std::size_t at = 0;
  ending.drew = take<uint8_t>(bytes, at) != 0;
  ending.replica = take<int32_t>(bytes, at);
  ending.type = static_cast<at::ScalarType>(take<int8_t>(bytes, at));
  const auto count = take<uint64_t>(bytes, at);
  // `count` is checked against a quotient, because the product may overflow.
  TORCH_CHECK(count <= bytes.size() / kBytesOfALoss &&
                  at + kBytesOfALoss * count == bytes.size(),
              "the end of a step says that it has ", count,
              " losses, for which its ", bytes.size(),
              " bytes are not the right number; run the same gpipe on all "
              "ranks");
  for (auto* list : {&ending.losses, &ending.weights}) {
    for (uint64_t k = 0; k < count; ++k) {
      list->push_back(take<double>(bytes, at));
    }
  }
  return ending;
}

}  // namespace gpipe::internal
