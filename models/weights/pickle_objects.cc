#include "models/weights/pickle_objects.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "models/weights/dtypes.h"
#include "models/weights/in_quotes.h"

namespace gpipe::internal {
namespace {

using Kind = PickleValue::Kind;

enum Function : int64_t {
  kOrderedDict,
  kSize,
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildFromTensor,  // the first argument is the tensor
  kRebuildFromType,
};

struct FunctionName {
  std::string_view module;
  std::string_view name;
  Function function;
};

constexpr FunctionName kFunctions[] = {
    {"collections", "OrderedDict", kOrderedDict},
    {"torch", "Size", kSize},
    {"torch._utils", "_rebuild_tensor", kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", kRebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", kRebuildFromTensor},
    {"torch._utils", "_rebuild_parameter_with_state", kRebuildFromTensor},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
     kRebuildFromTensor},
    {"torch._tensor", "_rebuild_from_type_v2", kRebuildFromType},
};

// Returns whether a name is that of a class whose tensors are plain ones.
bool is_plain_tensor_class(const PickleValue& type) {
  if (type.kind != Kind::kName) return false;
  const std::string_view module = type.items[0]->text;
  return (module == "torch" && type.text == "Tensor") ||
         (module == "torch.nn.parameter" &&
          (type.text == "Parameter" || type.text == "Buffer"));
}

}  // namespace

PickleValue* PickleObjects::add(Kind kind) {
  PickleValue& value = values_.emplace_back();
  value.kind = kind;
  return &value;
}

PickleValue* PickleObjects::name(std::string_view module,
                                 std::string_view name) {
  PickleValue* in = add(Kind::kString);
  in->text = module;
  PickleValue* value = add(Kind::kName);
  value->text = name;
  value->items = {in};
  return value;
}

PickleValue* PickleObjects::object(const PickleValue& called) {
  PickleValue* value = add(Kind::kObject);
  value->items = {called.kind == Kind::kObject ? called.items[0] : &called};
  return value;
}

PickleValue* PickleObjects::copy(const PickleValue& value) {
  PickleValue* result = add(value.kind);
  *result = value;
  return result;
}

PickleValue* PickleObjects::global(std::string_view module,
                                   std::string_view name) {
  PickleValue* value = this->name(module, name);
  const auto typed = [&](Kind kind, c10::ScalarType dtype) {
    value->kind = kind;
    value->dtype = dtype;
    return value;
  };
  for (const FunctionName& each : kFunctions) {
    if (module != each.module || name != each.name) continue;
    value->kind = Kind::kFunction;
    value->integer = each.function;
    return value;
  }
  if (name == "UntypedStorage" &&
      (module == "torch" || module == "torch.storage")) {
    return typed(Kind::kStorageClass, at::kByte);
  }
  if (module == "torch") {
    if (const DtypeNames* found = find_dtype(&DtypeNames::storage, name)) {
      return typed(Kind::kStorageClass, found->dtype);
    }
    if (const DtypeNames* found = find_dtype(&DtypeNames::python, name)) {
      return typed(Kind::kDtype, found->dtype);
    }
  }
  return value;
}

PickleValue* PickleObjects::call(const PickleValue& function,
                                 const PickleValue& arguments) {
  if (function.kind == Kind::kName || function.kind == Kind::kObject) {
    return object(function);
  }
  check(function.kind == Kind::kFunction, "what is called is ",
        function.kind_name());
  const auto& items = arguments.items;
  switch (static_cast<Function>(function.integer)) {
    case kOrderedDict:
      check(items.empty(), "an OrderedDict made of ", items.size(),
            " arguments");
      return add(Kind::kDict);
    case kSize:
      // The limit bounds the work of one call.
      return items.size() == 1 && items[0]->kind == Kind::kTuple &&
                     items[0]->items.size() <= kMaxDimensions
                 ? copy(*items[0])
                 : object(function);
    case kRebuildTensor:
    case kRebuildTensorV2:
    case kRebuildTensorV3:
      return tensor(function, arguments);
    case kRebuildFromTensor:
      check(!items.empty() && (items[0]->kind == Kind::kTensor ||
                               items[0]->kind == Kind::kObject),
            "a parameter that is not made of a tensor");
      return copy(*items[0]);
    case kRebuildFromType:
      return tensor_of_class(function, arguments);
  }
  return object(function);
}

PickleValue* PickleObjects::storage(const PickleValue& id) {
  const auto& items = id.items;
  check(id.kind == Kind::kTuple && items.size() == 5 &&
            items[0]->kind == Kind::kString && items[0]->text == "storage" &&
            (items[1]->kind == Kind::kStorageClass ||
             items[1]->kind == Kind::kName) &&
            items[2]->kind == Kind::kString &&
            items[3]->kind == Kind::kString && items[4]->kind == Kind::kInt &&
            items[4]->integer >= 0,
        "a persistent id that does not name a storage");
  if (items[1]->kind == Kind::kName) return object(*items[1]);
  PickleValue* storage = add(Kind::kStorage);
  storage->dtype = items[1]->dtype;
  storage->text = items[2]->text;
  storage->integer = items[4]->integer;
  return storage;
}

// `arguments`: (storage, offset, sizes, strides). In version 2 (requires_grad,
// hooks) follow, in version 3 also the dtype. Metadata may follow in both.
PickleValue* PickleObjects::tensor(const PickleValue& function,
                                   const PickleValue& arguments) {
  const auto& items = arguments.items;
  const bool v3 = function.integer == kRebuildTensorV3;
  const std::size_t count = v3                                     ? 7
                            : function.integer == kRebuildTensorV2 ? 6
                                                                   : 4;
  check(items.size() == count || items.size() == count + 1, "a tensor of ",
        items.size(), " arguments");
  // The dtype or the class of the storage may be one that LibTorch lacks.
  if (items[0]->kind == Kind::kObject) return object(*items[0]);
  if (v3 && items[6]->kind == Kind::kName) return object(*items[6]);
  check(items[0]->kind == Kind::kStorage, "a tensor's storage is ",
        items[0]->kind_name());
  check(items[1]->kind == Kind::kInt && items[1]->integer >= 0,
        "a tensor's offset is ", items[1]->kind_name(), ", ",
        items[1]->integer);
  check_sizes(*items[2], "sizes");
  check_sizes(*items[3], "strides");
  check(items[2]->items.size() == items[3]->items.size(), "a tensor of ",
        items[2]->items.size(), " sizes, but ", items[3]->items.size(),
        " strides");
  check(!v3 || items[6]->kind == Kind::kDtype, "a tensor's dtype is ",
        items[std::min<std::size_t>(6, items.size() - 1)]->kind_name());
  if (items.size() > count) {
    const PickleValue& metadata = *items[count];
    const bool is_empty =
        metadata.kind == Kind::kNone ||
        (metadata.kind == Kind::kDict && metadata.items.empty());
    if (!is_empty) return object(*name("torch._utils", "set_tensor_metadata"));
  }
  PickleValue* tensor = add(Kind::kTensor);
  tensor->dtype = v3 ? items[6]->dtype : items[0]->dtype;
  tensor->integer = items[1]->integer;
  tensor->items = {items[0], items[2], items[3]};
  return tensor;
}

// `arguments`: (function, class, arguments of the function, attributes).
PickleValue* PickleObjects::tensor_of_class(const PickleValue& function,
                                            const PickleValue& arguments) {
  const auto& items = arguments.items;
  check(items.size() == 4 && items[2]->kind == Kind::kTuple,
        "a tensor of another class, of ", items.size(), " arguments");
  const PickleValue& inner = *items[0];
  if (inner.kind == Kind::kFunction && inner.integer != kRebuildFromType &&
      is_plain_tensor_class(*items[1])) {
    return call(inner, *items[2]);
  }
  return object(items[1]->kind == Kind::kName ? *items[1] : function);
}

void PickleObjects::check_sizes(const PickleValue& tuple,
                                const char* what) const {
  check(tuple.kind == Kind::kTuple, "a tensor's ", what, " are ",
        tuple.kind_name());
  check(tuple.items.size() <= kMaxDimensions, "a tensor of ",
        tuple.items.size(), " ", what, "; at most ", kMaxDimensions,
        " are read");
  for (const PickleValue* each : tuple.items) {
    check(each->kind == Kind::kInt && each->integer >= 0, "one of a tensor's ",
          what, " is ", each->kind_name(), ", ", each->integer);
  }
}

}  // namespace gpipe::internal
