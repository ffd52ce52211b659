#include "weights/pickle_objects.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "weights/dtypes.h"
#include "weights/in_quotes.h"

namespace gpipe::internal {
namespace {

using Kind = PickleValue::Kind;

enum Function : int64_t {
  kOrderedDict,
  kSize,
  kDevice,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
};

struct FunctionName {
  const char* module;
  const char* name;
  Function function;
};

constexpr FunctionName kFunctions[] = {
    {"collections", "OrderedDict", kOrderedDict},
    {"torch", "Size", kSize},
    {"torch", "device", kDevice},
    {"torch._utils", "_rebuild_tensor_v2", kRebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", kRebuildParameter},
};

}  // namespace

PickleValue* PickleObjects::add(Kind kind) {
  PickleValue& value = values_.emplace_back();
  value.kind = kind;
  return &value;
}

PickleValue* PickleObjects::global(std::string_view module,
                                   std::string_view name) {
  for (const FunctionName& each : kFunctions) {
    if (module != each.module || name != each.name) continue;
    PickleValue* function = add(Kind::kFunction);
    function->integer = each.function;
    return function;
  }
  const auto typed = [&](Kind kind, c10::ScalarType dtype) {
    PickleValue* value = add(kind);
    value->dtype = dtype;
    return value;
  };
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
  fail("asks for ", in_quotes(std::string(module) + "." + std::string(name)),
       ", which is not part of a state dict of plain tensors. Nothing was "
       "executed. If you trust the file, load it in Python and save the "
       "tensors alone: torch.save(model.state_dict(), path)");
}

PickleValue* PickleObjects::call(const PickleValue& function,
                                 PickleValue* arguments) {
  const auto& items = arguments->items;
  switch (function.integer) {
    case kOrderedDict:
      check(items.empty(), "an OrderedDict made of ", items.size(),
            " arguments");
      return add(Kind::kDict);
    case kSize: {
      check(items.size() == 1 && items[0]->kind == Kind::kTuple,
            "a torch.Size that is not made of a tuple");
      check_sizes(*items[0], "sizes");
      PickleValue* size = add(Kind::kTuple);
      size->items = items[0]->items;
      return size;
    }
    case kRebuildTensorV2:
      return tensor(*arguments, /*v3=*/false);
    case kRebuildTensorV3:
      return tensor(*arguments, /*v3=*/true);
    case kRebuildParameter: {
      check(!items.empty() && items[0]->kind == Kind::kTensor,
            "a parameter that is not made of a tensor");
      PickleValue* parameter = add(Kind::kTensor);
      *parameter = *items[0];
      return parameter;
    }
  }
  return arguments;  // kDevice
}

PickleValue* PickleObjects::storage(const PickleValue& id) {
  const auto& items = id.items;
  check(id.kind == Kind::kTuple && items.size() == 5 &&
            items[0]->kind == Kind::kString && items[0]->text == "storage" &&
            items[1]->kind == Kind::kStorageClass &&
            items[2]->kind == Kind::kString &&
            items[3]->kind == Kind::kString && items[4]->kind == Kind::kInt &&
            items[4]->integer >= 0,
        "a persistent id that does not name a storage");
  PickleValue* storage = add(Kind::kStorage);
  storage->dtype = items[1]->dtype;
  storage->text = items[2]->text;
  storage->integer = items[4]->integer;
  return storage;
}

// `arguments`: (storage, offset, sizes, strides, requires_grad, hooks). With
// `v3` the dtype follows. Metadata may follow in both.
PickleValue* PickleObjects::tensor(const PickleValue& arguments, bool v3) {
  const auto& items = arguments.items;
  const std::size_t count = v3 ? 7 : 6;
  check(items.size() == count || items.size() == count + 1, "a tensor of ",
        items.size(), " arguments");
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
    check(metadata.kind == Kind::kNone ||
              (metadata.kind == Kind::kDict && metadata.items.empty()),
          "a tensor whose conjugation or negation is still to be done; save "
          "its resolve_conj().resolve_neg()");
  }
  PickleValue* tensor = add(Kind::kTensor);
  tensor->dtype = v3 ? items[6]->dtype : items[0]->dtype;
  tensor->integer = items[1]->integer;
  tensor->items = {items[0], items[2], items[3]};
  return tensor;
}

void PickleObjects::check_sizes(const PickleValue& tuple,
                                const char* what) const {
  check(tuple.kind == Kind::kTuple, "a tensor's ", what, " are ",
        tuple.kind_name());
  // This also bounds the work of one call.
  check(tuple.items.size() <= kMaxDimensions, "a tensor of ",
        tuple.items.size(), " ", what, "; at most ", kMaxDimensions,
        " are read");
  for (const PickleValue* each : tuple.items) {
    check(each->kind == Kind::kInt && each->integer >= 0, "one of a tensor's ",
          what, " is ", each->kind_name(), ", ", each->integer);
  }
}

}  // namespace gpipe::internal
