#include "models/weights/pickle.h"

#include <c10/macros/Macros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "gpipe/base/text.h"
#include "models/weights/formats.h"

namespace gpipe::internal {
namespace {

using Kind = PickleValue::Kind;

using torch::jit::PickleOpCode;
using enum PickleOpCode;

// An opcode of protocol 5, which LibTorch's list lacks.
constexpr auto kByteArray8 = static_cast<PickleOpCode>('\x96');

// ---- The objects that a pickle may make by name, without executing code

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

// ---- The reader

// The maximum number of nested MARKs. A state dict has 3.
constexpr std::size_t kMaxMarks = 1000;

// The machine that executes the opcodes of a pickle. The comment of Pickle in
// the header says what the opcodes may do.
class Machine {
 public:
  // Adds all values to `values`, which must outlive this object.
  Machine(std::string_view bytes, std::deque<PickleValue>& values)
      : values_(values), bytes_(bytes) {}

  const PickleValue* run() {
    while (true) {
      at_ = position_;
      const auto opcode = static_cast<PickleOpCode>(byte());
      if (opcode == STOP) return pop();
      step(opcode);
    }
  }

 private:
  // ---- The values that a pickle may make. The comment of Pickle lists the
  // ---- names that it may use.

  // Throws c10::ValueError with the position of the current opcode.
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    TORCH_CHECK_VALUE(false, "pickle, byte ", at_, ": ", parts...);
  }

  // Calls fail() if `condition` is false.
  template <typename... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (C10_UNLIKELY(!condition)) fail(parts...);
  }

  PickleValue* add(Kind kind) {
    PickleValue& value = values_.emplace_back();
    value.kind = kind;
    return &value;
  }

  // Returns the dtype, storage class or function of this name, or a kName.
  PickleValue* global(std::string_view module, std::string_view name) {
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

  // Returns the result of calling what global() or call() has returned with a
  // tuple. A call of a kName or kObject, or a call that makes no plain tensor,
  // returns a kObject.
  PickleValue* call(const PickleValue& function, const PickleValue& arguments) {
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

  // Returns the storage of a persistent id:
  // ('storage', <class>, key, location, elements).
  PickleValue* storage(const PickleValue& id) {
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

  PickleValue* name(std::string_view module, std::string_view name) {
    PickleValue* in = add(Kind::kString);
    in->text = module;
    PickleValue* value = add(Kind::kName);
    value->text = name;
    value->items = {in};
    return value;
  }

  PickleValue* object(const PickleValue& called) {
    PickleValue* value = add(Kind::kObject);
    value->items = {called.kind == Kind::kObject ? called.items[0] : &called};
    return value;
  }

  PickleValue* copy(const PickleValue& value) {
    PickleValue* result = add(value.kind);
    *result = value;
    return result;
  }

  // `arguments`: (storage, offset, sizes, strides). In version 2
  // (requires_grad, hooks) follow, in version 3 also the dtype. Metadata may
  // follow in both.
  PickleValue* tensor(const PickleValue& function,
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
      if (!is_empty)
        return object(*name("torch._utils", "set_tensor_metadata"));
    }
    PickleValue* tensor = add(Kind::kTensor);
    tensor->dtype = v3 ? items[6]->dtype : items[0]->dtype;
    tensor->integer = items[1]->integer;
    tensor->items = {items[0], items[2], items[3]};
    return tensor;
  }

  // `arguments`: (function, class, arguments of the function, attributes).
  PickleValue* tensor_of_class(const PickleValue& function,
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

  void check_sizes(const PickleValue& tuple, const char* what) const {
    check(tuple.kind == Kind::kTuple, "a tensor's ", what, " are ",
          tuple.kind_name());
    check(tuple.items.size() <= kMaxDimensions, "a tensor of ",
          tuple.items.size(), " ", what, "; at most ", kMaxDimensions,
          " are read");
    for (const PickleValue* each : tuple.items) {
      check(each->kind == Kind::kInt && each->integer >= 0,
            "one of a tensor's ", what, " is ", each->kind_name(), ", ",
            each->integer);
    }
  }

  // ---- The bytes

  std::string_view take(uint64_t count) {
    const std::size_t left = bytes_.size() - position_;
    check(count <= left, "wants ", count, " bytes more, but there are ", left);
    const std::string_view taken = bytes_.substr(position_, count);
    position_ += count;
    return taken;
  }

  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }

  // Reads an unsigned little-endian number.
  uint64_t number(std::size_t width) {
    uint64_t value = 0;
    std::memcpy(&value, take(width).data(), width);
    return value;
  }

  // Reads a little-endian number of `width` bytes in two's complement.
  void push_long(uint64_t width) {
    if (width > 8) {
      take(width);
      push_new(Kind::kLargeInt);
      return;
    }
    uint64_t value = number(width);
    const bool negative = width > 0 && (value >> (8 * width - 1) & 1);
    if (negative && width < 8) value |= ~uint64_t{0} << (8 * width);
    push_integer(static_cast<int64_t>(value));
  }

  std::string_view line() {
    const std::size_t end = bytes_.find('\n', position_);
    check(end != std::string_view::npos, "a name without an end");
    const std::string_view text = take(end - position_);
    take(1);
    return text;
  }

  // ---- The stack. A list, tuple or dict under construction begins at the last
  // ---- mark, and the values below the mark cannot be reached.

  void push(PickleValue* value) { stack_.push_back(value); }
  void push_integer(int64_t value) { push_new(Kind::kInt)->integer = value; }
  void push_text(Kind kind, uint64_t size) {
    push_new(kind)->text = take(size);
  }

  PickleValue* push_new(Kind kind) {
    push(add(kind));
    return stack_.back();
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  PickleValue* top() const {
    check(stack_.size() > floor(), "takes from an empty stack");
    return stack_.back();
  }

  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }

  PickleValue* pop(Kind kind, const char* what) {
    PickleValue* value = pop();
    check(value->kind == kind, what, " is ", value->kind_name());
    return value;
  }

  // Returns the items of the container `value`. Items that are added to a
  // kObject are dropped.
  std::vector<const PickleValue*>& items_of(PickleValue* value, Kind kind) {
    if (value->kind == Kind::kObject) {
      dropped_.clear();
      return dropped_;
    }
    check(value->kind == kind, "adds items to ", value->kind_name());
    return value->items;
  }

  // Moves the values above the last mark to the end of `items`.
  void pop_mark(std::vector<const PickleValue*>& items) {
    check(!marks_.empty(), "no mark on the stack");
    const auto begin =
        stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    items.insert(items.end(), begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
  }

  // Returns the items of the container for the values above the last mark. The
  // container is the value below the mark.
  std::vector<const PickleValue*>& items_below_mark(Kind kind) {
    check(!marks_.empty(), "no mark on the stack");
    const std::size_t mark = marks_.back();
    const std::size_t floor = marks_.size() < 2 ? 0 : marks_[marks_.size() - 2];
    check(mark > floor, "takes from an empty stack");
    return items_of(stack_[mark - 1], kind);
  }

  void check_pairs(std::size_t items) const {
    check(items % 2 == 0, "a dict's key without a value");
  }

  // Replaces the values above the last mark by a container of them.
  void push_marked(Kind kind) {
    PickleValue* value = add(kind);
    pop_mark(value->items);
    push(value);
  }

  void push_tuple(std::size_t count) {
    PickleValue* tuple = add(Kind::kTuple);
    tuple->items.resize(count);
    while (count > 0) tuple->items[--count] = pop();
    push(tuple);
  }

  // ---- The memo

  void memoize(uint64_t index) {
    // Writers number the memo from 0, so an index cannot exceed the number of
    // bytes.
    check(index <= bytes_.size(), "memo ", index, " in a pickle of ",
          bytes_.size(), " bytes");
    memo_[index] = top();
  }

  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    check(found != memo_.end(), "memo ", index, " has not been set");
    push(found->second);
  }

  // ---- The opcodes

  void step(PickleOpCode opcode) {
    if (opcode == kByteArray8) return push_text(Kind::kBytes, number(8));
    switch (opcode) {
      case PROTO: {
        const int protocol = byte();
        return check(protocol >= 2 && protocol <= 5, "protocol ", protocol,
                     "; 2 to 5 are read");
      }
      case FRAME:
        take(8);  // a hint for readers: the size of the next block
        return;
      case MARK:
        check(marks_.size() < kMaxMarks, "nested deeper than ", kMaxMarks);
        return marks_.push_back(stack_.size());
      case POP:
        pop();
        return;
      case POP_MARK:
        dropped_.clear();
        return pop_mark(dropped_);
      case DUP:
        return push(top());

      case BINPUT:
        return memoize(number(1));
      case LONG_BINPUT:
        return memoize(number(4));
      case MEMOIZE:
        return memoize(memo_.size());
      case BINGET:
        return recall(number(1));
      case LONG_BINGET:
        return recall(number(4));

      case GLOBAL: {
        const std::string_view module = line();
        return push(global(module, line()));
      }
      case STACK_GLOBAL: {
        const PickleValue* name = pop(Kind::kString, "a name");
        return push(
            global(pop(Kind::kString, "a module's name")->text, name->text));
      }
      case BINPERSID:
        return push(storage(*pop()));
      case NEWOBJ_EX:
        pop();  // arguments by name
        [[fallthrough]];
      case REDUCE:
      case NEWOBJ: {
        const PickleValue* arguments =
            pop(Kind::kTuple, "what a function is called with");
        const PickleValue* function = pop();
        return push(call(*function, *arguments));
      }
      case BUILD: {
        pop();
        const PickleValue* object = top();
        return check(
            object->kind == Kind::kDict || object->kind == Kind::kObject,
            "sets attributes of ", object->kind_name());
      }

      case NONE:
        push_new(Kind::kNone);
        return;
      case NEWTRUE:
      case NEWFALSE:
        push_new(Kind::kBool)->integer = opcode == NEWTRUE;
        return;
      case BININT:
        return push_integer(static_cast<int32_t>(number(4)));
      case BININT1:
        return push_integer(byte());
      case BININT2:
        return push_integer(static_cast<int64_t>(number(2)));
      case LONG1:
        return push_long(number(1));
      case LONG4:
        return push_long(number(4));
      case BINFLOAT:
        push_new(Kind::kFloat)->real =
            std::bit_cast<double>(__builtin_bswap64(number(8)));
        return;

      case SHORT_BINUNICODE:
      case SHORT_BINSTRING:
        return push_text(Kind::kString, number(1));
      case BINUNICODE:
      case BINSTRING:
        return push_text(Kind::kString, number(4));
      case BINUNICODE8:
        return push_text(Kind::kString, number(8));
      case SHORT_BINBYTES:
        return push_text(Kind::kBytes, number(1));
      case BINBYTES:
        return push_text(Kind::kBytes, number(4));
      case BINBYTES8:
        return push_text(Kind::kBytes, number(8));

      case EMPTY_TUPLE:
        return push_tuple(0);
      case TUPLE1:
        return push_tuple(1);
      case TUPLE2:
        return push_tuple(2);
      case TUPLE3:
        return push_tuple(3);
      case TUPLE:
        return push_marked(Kind::kTuple);

      case EMPTY_LIST:
        push_new(Kind::kList);
        return;
      case LIST:
        return push_marked(Kind::kList);
      case APPEND: {
        const PickleValue* item = pop();
        return items_of(top(), Kind::kList).push_back(item);
      }
      case APPENDS:
        return pop_mark(items_below_mark(Kind::kList));

      case EMPTY_SET:
        push_new(Kind::kSet);
        return;
      case FROZENSET:
        return push_marked(Kind::kSet);
      case ADDITEMS:
        return pop_mark(items_below_mark(Kind::kSet));

      case EMPTY_DICT:
        push_new(Kind::kDict);
        return;
      case DICT:
        push_marked(Kind::kDict);
        return check_pairs(stack_.back()->items.size());
      case SETITEM: {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        auto& items = items_of(top(), Kind::kDict);
        items.push_back(key);
        return items.push_back(value);
      }
      case SETITEMS: {
        auto& items = items_below_mark(Kind::kDict);
        check_pairs(stack_.size() - marks_.back());
        return pop_mark(items);
      }
      default:
        fail("opcode ", int{static_cast<uint8_t>(opcode)}, " (",
             in_quotes(bytes_.substr(at_, 1)),
             "), which torch.save does not use for a state dict; nothing was "
             "executed");
    }
  }

  std::deque<PickleValue>& values_;
  const std::string_view bytes_;
  std::size_t at_ = 0;  // position of the opcode that is being executed
  std::size_t position_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<const PickleValue*> dropped_;  // items that are not kept
  std::vector<std::size_t> marks_;           // height of the stack at each mark
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

}  // namespace

const char* PickleValue::kind_name() const {
  // In the order of Kind.
  static constexpr const char* kNames[] = {
      "None",       "a bool",  "an int",          "a large int", "a float",
      "a str",      "bytes",   "a tuple",         "a list",      "a set",
      "a dict",     "a dtype", "a storage class", "a storage",   "a tensor",
      "a function", "a name",  "an object"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string PickleValue::quoted_name() const {
  const PickleValue& name = kind == Kind::kObject ? *items[0] : *this;
  return in_quotes(std::string(name.items[0]->text) + "." +
                   std::string(name.text));
}

Pickle::Pickle(std::string_view bytes)
    : value_(Machine(bytes, values_).run()) {}

// ---- The writer

namespace {

// A writer of protocol 2. It memoizes only names.
class Writer {
 public:
  std::string take() {
    opcode(STOP);
    return std::move(bytes_);
  }

  void opcode(PickleOpCode opcode) {
    bytes_.push_back(static_cast<char>(opcode));
  }

  void protocol() {
    opcode(PROTO);
    number(2, 1);
  }

  // `text`: UTF-8.
  void text(std::string_view text) {
    opcode(BINUNICODE);
    TORCH_CHECK_VALUE(text.size() <= UINT32_MAX, "a name of ", text.size(),
                      " bytes is too long for a pickle");
    number(text.size(), 4);
    bytes_ += text;
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 1 << 8) {
      opcode(BININT1);
      number(value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      opcode(BININT);
      number(static_cast<uint64_t>(value), 4);
    } else {
      opcode(LONG1);
      number(8, 1);
      number(static_cast<uint64_t>(value), 8);
    }
  }

  void integers(const std::vector<int64_t>& values) {
    if (values.empty()) return opcode(EMPTY_TUPLE);
    opcode(MARK);
    for (const int64_t value : values) integer(value);
    opcode(TUPLE);
  }

  // `lines`: "module\nname\n".
  void global(const std::string& lines) {
    const auto [found, is_new] = memo_.emplace(lines, memo_.size());
    if (!is_new) {
      opcode(LONG_BINGET);
      number(found->second, 4);
      return;
    }
    opcode(GLOBAL);
    bytes_ += lines;
    opcode(LONG_BINPUT);
    number(found->second, 4);
  }

  void ordered_dict() {
    global("collections\nOrderedDict\n");
    opcode(EMPTY_TUPLE);
    opcode(REDUCE);
  }

 private:
  void number(uint64_t value, std::size_t width) {
    bytes_.append(reinterpret_cast<const char*>(&value), width);
  }

  std::string bytes_;
  std::unordered_map<std::string, std::size_t> memo_;
};

void write_tensor(Writer& to, const PickledTensor& tensor) {
  const DtypeNames* names = find_dtype(tensor.dtype);
  TORCH_CHECK_VALUE(names, in_quotes(tensor.name), " is of dtype ",
                    tensor.dtype, ", for which a state dict has no name");
  // A dtype without a storage class is written as an untyped storage and a
  // dtype.
  const bool v3 = !names->storage;
  const auto element = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  to.global(v3 ? "torch._utils\n_rebuild_tensor_v3\n"
               : "torch._utils\n_rebuild_tensor_v2\n");
  to.opcode(MARK);

  to.opcode(MARK);
  to.text("storage");
  to.global(v3 ? std::string("torch.storage\nUntypedStorage\n")
               : std::string("torch\n") + names->storage + "\n");
  to.text(tensor.key);
  to.text("cpu");
  to.integer(v3 ? tensor.storage_bytes : tensor.storage_bytes / element);
  to.opcode(TUPLE);
  to.opcode(BINPERSID);

  to.integer(tensor.offset);
  to.integers(tensor.sizes);
  to.integers(tensor.strides);
  to.opcode(NEWFALSE);  // requires_grad
  to.ordered_dict();    // hooks
  if (v3) to.global(std::string("torch\n") + names->python + "\n");

  to.opcode(TUPLE);
  to.opcode(REDUCE);
}

}  // namespace

std::string pickle_tensors(const std::vector<PickledTensor>& tensors) {
  Writer writer;
  writer.protocol();
  writer.ordered_dict();
  writer.opcode(MARK);
  for (const PickledTensor& tensor : tensors) {
    writer.text(tensor.name);
    write_tensor(writer, tensor);
  }
  writer.opcode(SETITEMS);
  return writer.take();
}

}  // namespace gpipe::internal
