#include "training/files/parameter_rows.h"

#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

namespace gpipe::internal {
namespace {

// Reads a number that ends with `last`, and moves `at` behind it.
std::optional<int64_t> number_before(char last, const char*& at,
                                     const char* end) {
  int64_t number = 0;
  const auto result = std::from_chars(at, end, number);
  if (result.ec != std::errc() || result.ptr == end || *result.ptr != last) {
    return std::nullopt;
  }
  at = result.ptr + 1;
  return number;
}

// Returns the rows of `parameter` that `tensor`, which shares its memory, is.
std::optional<std::pair<int64_t, int64_t>> rows_in(const at::Tensor& parameter,
                                                   const at::Tensor& tensor) {
  const int64_t offset = tensor.storage_offset() - parameter.storage_offset();
  // A scalar is a shard with one row.
  if (parameter.dim() == 0) {
    if (tensor.numel() != 1 || offset != 0) return std::nullopt;
    return std::pair<int64_t, int64_t>(0, 1);
  }
  if (tensor.dim() != parameter.dim() ||
      tensor.sizes().slice(1) != parameter.sizes().slice(1) ||
      tensor.strides() != parameter.strides()) {
    return std::nullopt;
  }
  const int64_t stride = parameter.stride(0);
  if (stride <= 0 || offset < 0 || offset % stride != 0) return std::nullopt;
  const int64_t first = offset / stride, end = first + tensor.size(0);
  if (end > parameter.size(0)) return std::nullopt;
  return std::pair(first, end);
}

}  // namespace

std::string to_string(const ShardName& shard) {
  return shard.parameter + "[" + std::to_string(shard.first) + ":" +
         std::to_string(shard.end) + "]";
}

std::optional<ShardName> parse_shard_name(const std::string& name) {
  const std::size_t open = name.rfind('[');
  if (open == std::string::npos) return std::nullopt;
  const char* at = name.data() + open + 1;
  const char* const end = name.data() + name.size();
  const auto first = number_before(':', at, end);
  if (!first) return std::nullopt;
  const auto last = number_before(']', at, end);
  if (!last || at != end || *first < 0 || *last <= *first) return std::nullopt;
  return ShardName{name.substr(0, open), *first, *last};
}

std::string parameter_of(const std::string& name) {
  const auto shard = parse_shard_name(name);
  return shard ? shard->parameter : name;
}

std::string NamedRows::key(const std::string& name) const {
  return is_whole ? name : to_string(ShardName{name, first, end});
}

ParameterNames::ParameterNames(const Dict& names) : names_(names) {
  for (const auto& item : names) {
    const at::Tensor& tensor = item.value();
    by_tensor_[tensor.unsafeGetTensorImpl()].push_back(item.key());
    if (!tensor.has_storage()) continue;
    by_storage_[tensor.storage().unsafeGetStorageImpl()].push_back(item.key());
  }
}

std::optional<NamedRows> ParameterNames::find(const at::Tensor& tensor) const {
  const auto own = by_tensor_.find(tensor.unsafeGetTensorImpl());
  if (own != by_tensor_.end()) {
    return NamedRows{own->second, tensor, 0, 0, false, true};
  }
  if (!tensor.has_storage()) return std::nullopt;
  const auto shared = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  if (shared == by_storage_.end()) return std::nullopt;
  for (const std::string& name : shared->second) {
    const at::Tensor& parameter = names_[name];
    const auto rows = rows_in(parameter, tensor);
    if (!rows) continue;
    const int64_t all = parameter.dim() == 0 ? 1 : parameter.size(0);
    return NamedRows{by_tensor_.at(parameter.unsafeGetTensorImpl()),
                     parameter,
                     rows->first,
                     rows->second,
                     true,
                     rows->second - rows->first == all};
  }
  return std::nullopt;
}

}  // namespace gpipe::internal
