#include "gpipe/distributed/ending.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

// Appends the dtype and the value of a real scalar. Every such value fits into
// a double or an int64 without loss.
void put_scalar(std::string& bytes, const at::Tensor& scalar) {
  put(bytes, static_cast<int8_t>(scalar.scalar_type()));
  if (scalar.is_floating_point()) {
    put(bytes, scalar.item<double>());
  } else {
    put(bytes, scalar.item<int64_t>());
  }
}

at::Tensor take_scalar(const std::string& bytes, std::size_t& at) {
  const auto type = static_cast<at::ScalarType>(take<int8_t>(bytes, at));
  TORCH_CHECK(c10::isFloatingType(type) ||
                  c10::isIntegralType(type, /*includeBool=*/false),
              "the end of a step holds a number of dtype ",
              static_cast<int>(type), "; run the same gpipe on all ranks");
  const at::TensorOptions options(type);
  if (c10::isFloatingType(type)) {
    return at::scalar_tensor(take<double>(bytes, at), options);
  }
  return at::scalar_tensor(take<int64_t>(bytes, at), options);
}

}  // namespace

std::string Ending::encode() const {
  std::string bytes;
  put(bytes, static_cast<uint8_t>(drew));
  put(bytes, static_cast<int32_t>(replica));
  put(bytes, static_cast<int8_t>(type));
  put(bytes, static_cast<uint64_t>(losses.size()));
  for (const double each : losses) put(bytes, each);
  if (losses.empty()) return bytes;
  put(bytes, static_cast<uint8_t>(totals.weighted));
  put_scalar(bytes, totals.sum);
  put(bytes, totals.weight);
  put(bytes, static_cast<uint64_t>(totals.metrics.size()));
  for (const auto& [name, value] : totals.metrics) {
    put_text(bytes, name);
    put_scalar(bytes, value);
  }
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
  TORCH_CHECK(count <= bytes.size() / sizeof(double),
              "the end of a step says that it has ", count,
              " losses, for which its ", bytes.size(),
              " bytes are not the right number; run the same gpipe on all "
              "ranks");
  for (uint64_t k = 0; k < count; ++k) {
    ending.losses.push_back(take<double>(bytes, at));
  }
  uint64_t metrics = 0;
  if (count > 0) {
    ending.totals.weighted = take<uint8_t>(bytes, at) != 0;
    ending.totals.sum = take_scalar(bytes, at);
    ending.totals.weight = take<double>(bytes, at);
    metrics = take<uint64_t>(bytes, at);
    for (uint64_t k = 0; k < metrics && at < bytes.size(); ++k) {
      std::string name = take_text(bytes, at);
      ending.totals.metrics.emplace_back(std::move(name),
                                         take_scalar(bytes, at));
    }
  }
  TORCH_CHECK(at == bytes.size() && ending.totals.metrics.size() == metrics,
              "the end of a step has ", bytes.size(), " bytes, but its ",
              metrics, " metrics and the rest take another number",
              "; run the same gpipe on all ranks");
  return ending;
}

}  // namespace gpipe::internal
