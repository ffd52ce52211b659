#include "models/weights/pickled_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "gpipe/base/text.h"
#include "models/weights/formats.h"

namespace gpipe::internal {

namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kNames[] = {"state_dict", "model_state_dict",
                                       "model", "module"};
// The numbers that bound the work for any pickle.
constexpr std::size_t kLevels = 3;     // entries of kNames in one another
constexpr std::size_t kPlaces = 1000;  // containers that an error looks at
constexpr std::size_t kListed = 20;    // items that an error lists

bool is_container(const PickleValue& value) {
  return value.kind == Kind::kDict || value.kind == Kind::kList ||
         value.kind == Kind::kTuple;
}

bool is_key(const PickleValue& key, std::string_view name) {
  return key.kind == Kind::kString
             ? key.text == name
             : key.kind == Kind::kInt && std::to_string(key.integer) == name;
}

// Returns the last value of a dict with this name, the element of a list or
// tuple with this index, or null.
const PickleValue* child(const PickleValue& of, std::string_view name) {
  const PickleValue* found = nullptr;
  if (of.kind == Kind::kDict) {
    for (std::size_t k = 0; k + 1 < of.items.size(); k += 2) {
      if (is_key(*of.items[k], name)) found = of.items[k + 1];
    }
  } else if (is_container(of)) {
    for (std::size_t k = 0; k < of.items.size() && !found; ++k) {
      if (std::to_string(k) == name) found = of.items[k];
    }
  }
  return found;
}

// Returns the value at `path`, or null. Tries the longest names first.
const PickleValue* value_at(const PickleValue& value, std::string_view path) {
  std::size_t end = path.size();
  while (true) {
    if (const PickleValue* found = child(value, path.substr(0, end))) {
      if (end == path.size()) return found;
      found = value_at(*found, path.substr(end + 1));
      if (found) return found;
    }
    end = end == 0 ? std::string_view::npos : path.rfind('/', end - 1);
    if (end == std::string_view::npos) return nullptr;
  }
}

// ---- Dicts of tensors

// Calls fn(name) for each tensor of a dict that has a text as its name.
template <typename Function>
void for_tensors(const PickleValue& value, const Function& fn) {
  if (value.kind != Kind::kDict) return;
  for (std::size_t k = 0; k + 1 < value.items.size(); k += 2) {
    const PickleValue& key = *value.items[k];
    if (key.kind == Kind::kString &&
        value.items[k + 1]->kind == Kind::kTensor) {
      fn(key.text);
    }
  }
}

std::size_t tensors_in(const PickleValue& value) {
  std::size_t count = 0;
  for_tensors(value, [&](std::string_view) { ++count; });
  return count;
}

bool has_parameters(const PickleValue& dict) {
  bool found = false;
  for_tensors(dict, [&](std::string_view name) {
    found |= name == "weight" || name == "bias" ||
             name.find('.') != std::string_view::npos;
  });
  return found;
}

// ---- Error texts

std::string kind_of(const PickleValue& value) {
  return value.kind == Kind::kObject ? value.quoted_name() : value.kind_name();
}

// Returns for example "'epoch' (an int), 'args' ('argparse.Namespace') and 3
// more".
std::string contents(const PickleValue& value) {
  if (value.kind != Kind::kDict) return kind_of(value);
  std::vector<std::string> names;
  for (std::size_t k = 0; k + 1 < value.items.size(); k += 2) {
    if (names.size() == kListed) {
      return c10::Join(", ", names) + " and " +
             std::to_string(value.items.size() / 2 - kListed) + " more";
    }
    const PickleValue& key = *value.items[k];
    names.push_back(
        (key.kind == Kind::kString ? in_quotes(key.text) : key.kind_name()) +
        " (" + kind_of(*value.items[k + 1]) + ")");
  }
  return names.empty() ? "nothing" : c10::Join(", ", names);
}

// A container in a pickle, and how it was reached.
struct Place {
  const PickleValue* value;
  std::size_t parent;  // index of the Place that holds it
  std::string_view name;
  int64_t index;  // the name, if `name` is null
};

std::string path_of(const std::vector<Place>& places, std::size_t at) {
  std::string path;
  for (; at != 0 && path.size() < 100; at = places[at].parent) {
    const Place& place = places[at];
    const std::string name = place.name.data()
                                 ? std::string(place.name.substr(0, 100))
                                 : std::to_string(place.index);
    path = name + (path.empty() ? "" : "/") + path;
  }
  return path;
}

// Returns for example "'nets/0' (3 tensors), 'nets/1' (2 tensors)". Each
// container is visited once.
std::string candidates(const PickleValue& root) {
  std::vector<Place> places = {{&root, 0, {}, 0}};
  std::unordered_set<const PickleValue*> seen = {&root};
  std::vector<std::string> names;
  for (std::size_t at = 0; at < places.size() && names.size() < kListed; ++at) {
    const Place place = places[at];
    if (const std::size_t count = tensors_in(*place.value)) {
      names.push_back(in_quotes(at == 0 ? "." : path_of(places, at)) + " (" +
                      std::to_string(count) + " tensors)");
    }
    const auto& items = place.value->items;
    const std::size_t step = place.value->kind == Kind::kDict ? 2 : 1;
    for (std::size_t k = step - 1; k < items.size(); k += step) {
      if (places.size() == kPlaces) break;
      // The key of a dict; null in a list.
      const PickleValue* const key = step == 2 ? items[k - 1] : nullptr;
      const bool has_name = key && key->kind == Kind::kString;
      const bool has_number = key && key->kind == Kind::kInt;
      if (!is_container(*items[k]) || (key && !has_name && !has_number) ||
          !seen.insert(items[k]).second) {
        continue;
      }
      places.push_back({items[k], at, has_name ? key->text : std::string_view(),
                        has_number ? key->integer : static_cast<int64_t>(k)});
    }
  }
  return c10::Join(", ", names);
}

std::string advice(const PickleValue& root) {
  const std::string names = candidates(root);
  return names.empty() ? "" : ". Name the entry to read: " + names;
}

// ---- The rules

// Returns the dict that the rules find in `value`, or null.
const PickleValue* choose(const PickleValue& value, const PickleValue& root,
                          std::size_t depth = 0) {
  if (value.kind != Kind::kDict || depth > kLevels) return nullptr;
  for (const std::string_view name : kNames) {
    const PickleValue* entry = child(value, name);
    const PickleValue* found =
        entry ? choose(*entry, root, depth + 1) : nullptr;
    if (found) return found;
  }
  if (has_parameters(value)) return &value;
  const PickleValue* only = nullptr;
  std::unordered_set<const PickleValue*> seen;
  for (std::size_t k = 1; k < value.items.size(); k += 2) {
    const PickleValue* item = value.items[k];
    if (item->kind != Kind::kDict || !seen.insert(item).second ||
        tensors_in(*item) == 0) {
      continue;
    }
    TORCH_CHECK_VALUE(!only, "holds several dicts of tensors", advice(root));
    only = item;
  }
  if (only) return only;
  return tensors_in(value) > 0 ? &value : nullptr;
}

}  // namespace

const PickleValue& weights_in(const PickleValue& value,
                              std::string_view entry) {
  const PickleValue* at = &value;
  std::string name;
  if (!entry.empty() && entry != ".") {
    at = value_at(value, entry);
    TORCH_CHECK_VALUE(at, "has no entry ", in_quotes(entry),
                      "; what there is: ", contents(value), advice(value));
    name = "entry " + in_quotes(entry) + " ";
  }
  if (!entry.empty() && tensors_in(*at) > 0) return *at;
  const PickleValue* found = choose(*at, value);
  TORCH_CHECK_VALUE(found, name, "holds no dict of tensors, as ",
                    "torch.save(model.state_dict(), path) writes it; what "
                    "there is: ",
                    contents(*at), advice(value));
  return *found;
}

// ---- Tensors

namespace {

using Kind = PickleValue::Kind;

std::vector<int64_t> integers(const PickleValue& tuple) {
  std::vector<int64_t> result;
  result.reserve(tuple.items.size());
  for (const PickleValue* each : tuple.items) result.push_back(each->integer);
  return result;
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
    const auto needed = extent_of(value.integer, sizes, strides);
    TORCH_CHECK_VALUE(bytes_of(sizes, value.dtype) && needed &&
                          *needed <= elements && fit(strides, sizes),
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
  constexpr std::string_view kNames[] = {
      "_codecs.encode",      "collections.Counter",
      "torch.Size",          "torch.device",
      "builtins.bytearray",  "torch.serialization._get_layout",
      "builtins.complex",    "builtins.frozenset",
      "builtins.set",        "__builtin__.bytearray",
      "__builtin__.complex", "__builtin__.frozenset",
      "__builtin__.set"};
  const std::string_view name = object.items[0]->text;
  const std::string_view module = object.items[0]->items[0]->text;
  return std::ranges::find(kNames, std::string(module).append(".").append(
                                       name)) != std::end(kNames);
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
