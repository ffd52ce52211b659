#include "models/weights/pickled_tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <vector>

#include "models/weights/dtypes.h"
#include "models/weights/in_quotes.h"
#include "models/weights/pickled_weights.h"

namespace gpipe::internal {
namespace {

using Kind = PickleValue::Kind;

std::vector<int64_t> integers(const PickleValue& tuple) {
  std::vector<int64_t> result;
  result.reserve(tuple.items.size());
  for (const PickleValue* each : tuple.items) result.push_back(each->integer);
  return result;
}

// Returns the number of elements of the storage that a tensor needs, or -1 if
// the number overflows.
int64_t extent(int64_t offset, const std::vector<int64_t>& sizes,
               const std::vector<int64_t>& strides) {
  int64_t last = offset;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 0) return offset;
    int64_t step = 0;
    if (__builtin_mul_overflow(sizes[k] - 1, strides[k], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return -1;
    }
  }
  return last == INT64_MAX ? -1 : last + 1;
}

class Builder {
 public:
  explicit Builder(const StorageReader& read) : read_(read) {}

  at::Tensor tensor(std::string_view name, const PickleValue& value) {
    const PickleValue& storage = *value.items[0];
    const std::vector<int64_t> sizes = integers(*value.items[1]);
    const std::vector<int64_t> strides = integers(*value.items[2]);
    const auto element = static_cast<int64_t>(c10::elementSize(value.dtype));
    // The size follows from the storage's own dtype, which may be uint8.
    const std::optional<int64_t> bytes =
        bytes_of({storage.integer}, storage.dtype);
    TORCH_CHECK_VALUE(bytes, in_quotes(name), " has a storage of ",
                      storage.integer, " elements");
    const int64_t elements = *bytes / element;
    const int64_t needed = extent(value.integer, sizes, strides);
    TORCH_CHECK_VALUE(bytes_of(sizes, value.dtype) && needed >= 0 &&
                          needed <= elements && fit(strides, sizes),
                      in_quotes(name), " has sizes ", c10::IntArrayRef(sizes),
                      ", strides ", c10::IntArrayRef(strides), " and offset ",
                      value.integer, ", which is beyond its storage of ",
                      elements, " elements");
    at::Tensor tensor = at::empty({0}, at::TensorOptions(value.dtype));
    tensor.set_(find(storage, *bytes), value.integer, sizes, strides);
    return tensor;
  }

 private:
  // LibTorch also multiplies the strides of sizes 0 and 1, which have no
  // meaning.
  static bool fit(const std::vector<int64_t>& strides,
                  const std::vector<int64_t>& sizes) {
    for (std::size_t k = 0; k < strides.size(); ++k) {
      int64_t product = 0;
      if (__builtin_mul_overflow(strides[k], sizes[k], &product)) return false;
    }
    return true;
  }

  const c10::Storage& find(const PickleValue& storage, int64_t bytes) {
    const std::string key(storage.text);
    auto found = storages_.find(key);
    if (found == storages_.end()) {
      found = storages_.emplace(key, read_(key, bytes)).first;
    }
    const auto size = static_cast<int64_t>(found->second.nbytes());
    TORCH_CHECK_VALUE(size == bytes, "storage ", in_quotes(key), " has ", size,
                      " bytes, but should have ", bytes);
    return found->second;
  }

  const StorageReader& read_;
  std::unordered_map<std::string, c10::Storage> storages_;
};

// Whether an object is one of those that torch.load(weights_only=True) makes
// and that is not a tensor.
bool is_no_tensor(const PickleValue& object) {
  constexpr std::string_view kNames[][2] = {
      {"collections", "Counter"},
      {"_codecs", "encode"},
      {"torch", "device"},
      {"torch", "Size"},
      {"torch.serialization", "_get_layout"}};
  constexpr std::string_view kBuiltins[] = {"bytearray", "complex", "frozenset",
                                            "set"};
  const std::string_view name = object.items[0]->text;
  const std::string_view module = object.items[0]->items[0]->text;
  if (module == "builtins" || module == "__builtin__") {
    return std::find(std::begin(kBuiltins), std::end(kBuiltins), name) !=
           std::end(kBuiltins);
  }
  return std::any_of(
      std::begin(kNames), std::end(kNames),
      [&](const auto& each) { return module == each[0] && name == each[1]; });
}

[[noreturn]] void refuse(std::string_view name, const PickleValue& object) {
  const std::string_view module = object.items[0]->items[0]->text;
  const bool is_torch = module == "torch" || module.substr(0, 6) == "torch.";
  TORCH_CHECK_VALUE(
      false, in_quotes(name), " asks for ", object.quoted_name(),
      ", which is not part of a state dict of plain tensors. Nothing was "
      "executed. If you trust the file, load it in Python and save the tensors "
      "alone: torch.save(model.state_dict(), path)",
      is_torch ? ". A tensor becomes a plain one by to_dense(), dequantize(), "
                 "full_tensor(), or resolve_conj().resolve_neg()"
               : "");
}

}  // namespace

StateDict tensors_of(const PickleValue& value, const StorageReader& storage,
                     std::string_view entry) {
  const PickleValue& dict = weights_in(value, entry);
  Builder builder(storage);
  StateDict result;
  for (std::size_t k = 0; k + 1 < dict.items.size(); k += 2) {
    const PickleValue& key = *dict.items[k];
    const PickleValue& item = *dict.items[k + 1];
    if (key.kind != Kind::kString) continue;
    if (item.kind == Kind::kObject && !is_no_tensor(item) &&
        !key.text.ends_with("_extra_state")) {  // Module.get_extra_state()
      refuse(key.text, item);
    }
    if (item.kind != Kind::kTensor) continue;
    const std::string name(key.text);
    TORCH_CHECK_VALUE(!result.contains(name), in_quotes(name),
                      " appears twice");
    result.insert(name, builder.tensor(name, item));
  }
  return result;
}

}  // namespace gpipe::internal
