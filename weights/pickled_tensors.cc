#include "weights/pickled_tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "weights/dtypes.h"
#include "weights/in_quotes.h"

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

bool has_tensors(const PickleValue& dict) {
  for (std::size_t k = 1; k < dict.items.size(); k += 2) {
    if (dict.items[k]->kind == Kind::kTensor) return true;
  }
  return false;
}

// Returns the last entry with this name, or null.
const PickleValue* entry(const PickleValue& dict, std::string_view name) {
  const PickleValue* found = nullptr;
  for (std::size_t k = 0; k + 1 < dict.items.size(); k += 2) {
    const PickleValue& key = *dict.items[k];
    if (key.kind == Kind::kString && key.text == name) {
      found = dict.items[k + 1];
    }
  }
  return found;
}

// Returns for example "'epoch' (an int), 'optimizer' (a dict) and 3 more".
std::string contents(const PickleValue& dict) {
  constexpr std::size_t kListed = 20;
  std::vector<std::string> names;
  for (std::size_t k = 0; k + 1 < dict.items.size(); k += 2) {
    if (names.size() == kListed) {
      return c10::Join(", ", names) + " and " +
             std::to_string(dict.items.size() / 2 - kListed) + " more";
    }
    const PickleValue& key = *dict.items[k];
    const std::string name =
        key.kind == Kind::kString ? in_quotes(key.text) : key.kind_name();
    names.push_back(name + " (" + dict.items[k + 1]->kind_name() + ")");
  }
  return names.empty() ? "nothing" : c10::Join(", ", names);
}

const PickleValue& dict_of(const PickleValue& value) {
  TORCH_CHECK_VALUE(value.kind == Kind::kDict, "holds ", value.kind_name(),
                    ", but should hold a dict of tensors, as "
                    "torch.save(model.state_dict(), path) writes it");
  if (has_tensors(value)) return value;
  for (const char* name : {"state_dict", "model"}) {
    const PickleValue* found = entry(value, name);
    if (found && found->kind == Kind::kDict && has_tensors(*found)) {
      return *found;
    }
  }
  TORCH_CHECK_VALUE(false,
                    "holds no dict of tensors, neither itself nor as "
                    "'state_dict' or 'model'; what there is: ",
                    contents(value));
}

}  // namespace

StateDict tensors_of(const PickleValue& value, const StorageReader& storage) {
  const PickleValue& dict = dict_of(value);
  Builder builder(storage);
  StateDict result;
  for (std::size_t k = 0; k + 1 < dict.items.size(); k += 2) {
    const PickleValue& key = *dict.items[k];
    const PickleValue& item = *dict.items[k + 1];
    if (item.kind != Kind::kTensor) continue;
    TORCH_CHECK_VALUE(key.kind == Kind::kString, "the name of a tensor is ",
                      key.kind_name());
    const std::string name(key.text);
    TORCH_CHECK_VALUE(!result.contains(name), in_quotes(name),
                      " appears twice");
    result.insert(name, builder.tensor(name, item));
  }
  return result;
}

}  // namespace gpipe::internal
