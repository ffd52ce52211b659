#include "weights/pickle.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "weights/dtypes.h"
#include "weights/in_quotes.h"

namespace gpipe::internal {
namespace {

using Kind = PickleValue::Kind;

// The opcodes, with the names of Python's pickletools.py.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyTuple = ')',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

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

// The maximum number of nested MARKs. A state dict has 3.
constexpr std::size_t kMaxMarks = 1000;

// The limit of LibTorch's operators. It also bounds the work of one call.
constexpr std::size_t kMaxDimensions = 64;

// The machine that executes the opcodes of a pickle. The comment of Pickle in
// the header says what the opcodes may do.
class Machine {
 public:
  Machine(std::string_view bytes, std::deque<PickleValue>& values)
      : bytes_(bytes), values_(values) {}

  const PickleValue* run() {
    while (true) {
      at_ = position_;
      const uint8_t opcode = byte();
      if (opcode == kStop) return pop();
      step(opcode);
    }
  }

 private:
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    TORCH_CHECK_VALUE(false, "pickle, byte ", at_, ": ", parts...);
  }

  template <typename... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (C10_UNLIKELY(!condition)) fail(parts...);
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
    const std::string_view taken = take(width);
    for (std::size_t k = 0; k < width; ++k) {
      value |= uint64_t{static_cast<uint8_t>(taken[k])} << (8 * k);
    }
    return value;
  }

  // Reads a big-endian double.
  double real() {
    uint64_t bits = 0;
    for (const char each : take(8)) {
      bits = bits << 8 | static_cast<uint8_t>(each);
    }
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  // Reads a little-endian number in two's complement. Its first byte is its
  // width.
  int64_t long_integer() {
    const std::size_t width = byte();
    check(width <= 8, "an integer of ", width, " bytes; at most 8 are read");
    if (width == 0) return 0;
    uint64_t value = number(width);
    const bool negative = value >> (8 * width - 1) & 1;
    if (negative && width < 8) value |= ~uint64_t{0} << (8 * width);
    return static_cast<int64_t>(value);
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

  PickleValue* add(Kind kind) {
    values_.emplace_back();
    values_.back().kind = kind;
    return &values_.back();
  }

  PickleValue* push(Kind kind) {
    stack_.push_back(add(kind));
    return stack_.back();
  }

  void push_integer(int64_t value) { push(Kind::kInt)->integer = value; }
  void push_bool(bool value) { push(Kind::kBool)->integer = value; }
  void push_text(Kind kind, uint64_t size) { push(kind)->text = take(size); }

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

  // Moves the values above the last mark to the end of `items`.
  void pop_mark(std::vector<const PickleValue*>& items) {
    check(!marks_.empty(), "no mark on the stack");
    const auto begin =
        stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    items.insert(items.end(), begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
  }

  // Returns the container for the values above the last mark, which is the
  // value below the mark.
  PickleValue* below_mark(Kind kind) const {
    check(!marks_.empty(), "no mark on the stack");
    const std::size_t mark = marks_.back();
    const std::size_t floor = marks_.size() < 2 ? 0 : marks_[marks_.size() - 2];
    check(mark > floor, "takes from an empty stack");
    PickleValue* value = stack_[mark - 1];
    check(value->kind == kind, "adds items to ", value->kind_name());
    return value;
  }

  void check_pairs(std::size_t items) const {
    check(items % 2 == 0, "a dict's key without a value");
  }

  void push_tuple(std::size_t count) {
    PickleValue* tuple = add(Kind::kTuple);
    tuple->items.resize(count);
    while (count > 0) tuple->items[--count] = pop();
    stack_.push_back(tuple);
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
    stack_.push_back(found->second);
  }

  // ---- Names and their meaning

  void push_global(std::string_view module, std::string_view name) {
    for (const FunctionName& each : kFunctions) {
      if (module == each.module && name == each.name) {
        push(Kind::kFunction)->integer = each.function;
        return;
      }
    }
    if (module == "torch" || module == "torch.storage") {
      if (name == "UntypedStorage") {
        push(Kind::kStorageClass)->dtype = at::kByte;
        return;
      }
    }
    if (module == "torch") {
      if (const DtypeNames* found = find_dtype_by_storage_name(name)) {
        push(Kind::kStorageClass)->dtype = found->dtype;
        return;
      }
      if (const DtypeNames* found = find_dtype_by_python_name(name)) {
        push(Kind::kDtype)->dtype = found->dtype;
        return;
      }
    }
    fail("asks for ", in_quotes(std::string(module) + "." + std::string(name)),
         ", which is not part of a state dict of plain tensors. Nothing was "
         "executed. If you trust the file, load it in Python and save the "
         "tensors alone: torch.save(model.state_dict(), path)");
  }

  // `id`: ('storage', <class>, key, location, elements).
  void push_storage(const PickleValue& id) {
    const auto& items = id.items;
    check(id.kind == Kind::kTuple && items.size() == 5 &&
              items[0]->kind == Kind::kString && items[0]->text == "storage" &&
              items[1]->kind == Kind::kStorageClass &&
              items[2]->kind == Kind::kString &&
              items[3]->kind == Kind::kString && items[4]->kind == Kind::kInt &&
              items[4]->integer >= 0,
          "a persistent id that does not name a storage");
    PickleValue* storage = push(Kind::kStorage);
    storage->dtype = items[1]->dtype;
    storage->text = items[2]->text;
    storage->integer = items[4]->integer;
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

  // `arguments`: (storage, offset, sizes, strides, requires_grad, hooks). With
  // `v3` the dtype follows. Metadata may follow in both.
  void push_tensor(const PickleValue& arguments, bool v3) {
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
    PickleValue* tensor = push(Kind::kTensor);
    tensor->dtype = v3 ? items[6]->dtype : items[0]->dtype;
    tensor->integer = items[1]->integer;
    tensor->items = {items[0], items[2], items[3]};
  }

  void reduce() {
    PickleValue* arguments =
        pop(Kind::kTuple, "what a function is called with");
    const PickleValue* function = pop(Kind::kFunction, "what is called");
    const auto& items = arguments->items;
    switch (function->integer) {
      case kOrderedDict:
        check(items.empty(), "an OrderedDict made of ", items.size(),
              " arguments");
        push(Kind::kDict);
        return;
      case kSize:
        check(items.size() == 1 && items[0]->kind == Kind::kTuple,
              "a torch.Size that is not made of a tuple");
        check_sizes(*items[0], "sizes");
        push(Kind::kTuple)->items = items[0]->items;
        return;
      case kDevice:
        stack_.push_back(arguments);
        return;
      case kRebuildTensorV2:
        return push_tensor(*arguments, /*v3=*/false);
      case kRebuildTensorV3:
        return push_tensor(*arguments, /*v3=*/true);
      case kRebuildParameter:
        check(!items.empty() && items[0]->kind == Kind::kTensor,
              "a parameter that is not made of a tensor");
        *push(Kind::kTensor) = *items[0];
        return;
    }
  }

  // ---- The opcodes

  void step(uint8_t opcode) {
    switch (opcode) {
      case kProto: {
        const int protocol = byte();
        return check(protocol >= 2 && protocol <= 5, "protocol ", protocol,
                     "; 2 to 5 are read");
      }
      case kFrame:
        take(8);  // a hint for readers: the size of the next block
        return;
      case kMark:
        check(marks_.size() < kMaxMarks, "nested deeper than ", kMaxMarks);
        marks_.push_back(stack_.size());
        return;
      case kPop:
        pop();
        return;
      case kPopMark: {
        std::vector<const PickleValue*> dropped;
        return pop_mark(dropped);
      }
      case kDup:
        return stack_.push_back(top());

      case kNone:
        push(Kind::kNone);
        return;
      case kNewTrue:
        return push_bool(true);
      case kNewFalse:
        return push_bool(false);
      case kBinInt:
        return push_integer(static_cast<int32_t>(number(4)));
      case kBinInt1:
        return push_integer(byte());
      case kBinInt2:
        return push_integer(static_cast<int64_t>(number(2)));
      case kLong1:
        return push_integer(long_integer());
      case kBinFloat:
        push(Kind::kFloat)->real = real();
        return;

      case kShortBinUnicode:
      case kShortBinString:
        return push_text(Kind::kString, number(1));
      case kBinUnicode:
      case kBinString:
        return push_text(Kind::kString, number(4));
      case kBinUnicode8:
        return push_text(Kind::kString, number(8));
      case kShortBinBytes:
        return push_text(Kind::kBytes, number(1));
      case kBinBytes:
        return push_text(Kind::kBytes, number(4));
      case kBinBytes8:
      case kByteArray8:
        return push_text(Kind::kBytes, number(8));

      case kEmptyTuple:
        return push_tuple(0);
      case kTuple1:
        return push_tuple(1);
      case kTuple2:
        return push_tuple(2);
      case kTuple3:
        return push_tuple(3);
      case kTuple: {
        PickleValue* tuple = add(Kind::kTuple);
        pop_mark(tuple->items);
        return stack_.push_back(tuple);
      }

      case kEmptyList:
        push(Kind::kList);
        return;
      case kList: {
        PickleValue* list = add(Kind::kList);
        pop_mark(list->items);
        return stack_.push_back(list);
      }
      case kAppend: {
        const PickleValue* item = pop();
        PickleValue* list = top();
        check(list->kind == Kind::kList, "adds an item to ", list->kind_name());
        return list->items.push_back(item);
      }
      case kAppends:
        return pop_mark(below_mark(Kind::kList)->items);

      case kEmptyDict:
        push(Kind::kDict);
        return;
      case kDict: {
        PickleValue* dict = add(Kind::kDict);
        pop_mark(dict->items);
        check_pairs(dict->items.size());
        return stack_.push_back(dict);
      }
      case kSetItem: {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        PickleValue* dict = top();
        check(dict->kind == Kind::kDict, "adds an item to ", dict->kind_name());
        dict->items.push_back(key);
        return dict->items.push_back(value);
      }
      case kSetItems: {
        PickleValue* dict = below_mark(Kind::kDict);
        check_pairs(stack_.size() - marks_.back());
        return pop_mark(dict->items);
      }

      case kBinPut:
        return memoize(number(1));
      case kLongBinPut:
        return memoize(number(4));
      case kMemoize:
        return memoize(memo_.size());
      case kBinGet:
        return recall(number(1));
      case kLongBinGet:
        return recall(number(4));

      case kGlobal: {
        const std::string_view module = line();
        return push_global(module, line());
      }
      case kStackGlobal: {
        const PickleValue* name = pop(Kind::kString, "a name");
        return push_global(pop(Kind::kString, "a module's name")->text,
                           name->text);
      }
      case kBinPersId:
        return push_storage(*pop());
      case kReduce:
      case kNewObj:
        return reduce();
      case kBuild: {
        pop();
        const PickleValue* object = top();
        return check(object->kind == Kind::kDict, "sets attributes of ",
                     object->kind_name());
      }
    }
    fail("opcode ", static_cast<int>(opcode), " (",
         in_quotes(bytes_.substr(at_, 1)),
         "), which torch.save does not use for a state dict; nothing was "
         "executed");
  }

  const std::string_view bytes_;
  std::size_t position_ = 0;
  std::size_t at_ = 0;  // position of the opcode that is being executed

  std::deque<PickleValue>& values_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  // height of the stack at each mark
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

// A writer of protocol 2. It memoizes only names.
class Writer {
 public:
  std::string take() {
    opcode(kStop);
    return std::move(bytes_);
  }

  void opcode(Opcode opcode) { bytes_.push_back(static_cast<char>(opcode)); }

  void protocol() {
    opcode(kProto);
    number(2, 1);
  }

  void text(std::string_view text) {
    opcode(kBinUnicode);
    TORCH_CHECK_VALUE(text.size() <= UINT32_MAX, "a name of ", text.size(),
                      " bytes is too long for a pickle");
    number(text.size(), 4);
    bytes_ += text;
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 1 << 8) {
      opcode(kBinInt1);
      number(value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      opcode(kBinInt);
      number(static_cast<uint64_t>(value), 4);
    } else {
      opcode(kLong1);
      number(8, 1);
      number(static_cast<uint64_t>(value), 8);
    }
  }

  void integers(const std::vector<int64_t>& values) {
    if (values.empty()) return opcode(kEmptyTuple);
    opcode(kMark);
    for (const int64_t value : values) integer(value);
    opcode(kTuple);
  }

  // `lines`: "module\nname\n".
  void global(const std::string& lines) {
    const auto [found, is_new] = memo_.emplace(lines, memo_.size());
    if (!is_new) {
      opcode(kLongBinGet);
      number(found->second, 4);
      return;
    }
    opcode(kGlobal);
    bytes_ += lines;
    opcode(kLongBinPut);
    number(found->second, 4);
  }

  void ordered_dict() {
    global("collections\nOrderedDict\n");
    opcode(kEmptyTuple);
    opcode(kReduce);
  }

 private:
  void number(uint64_t value, std::size_t width) {
    for (std::size_t k = 0; k < width; ++k) {
      bytes_.push_back(static_cast<char>(value >> (8 * k)));
    }
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
  to.opcode(kMark);

  to.opcode(kMark);
  to.text("storage");
  to.global(v3 ? std::string("torch.storage\nUntypedStorage\n")
               : std::string("torch\n") + names->storage + "\n");
  to.text(tensor.key);
  to.text("cpu");
  to.integer(v3 ? tensor.storage_bytes : tensor.storage_bytes / element);
  to.opcode(kTuple);
  to.opcode(kBinPersId);

  to.integer(tensor.offset);
  to.integers(tensor.sizes);
  to.integers(tensor.strides);
  to.opcode(kNewFalse);  // requires_grad
  to.ordered_dict();     // hooks
  if (v3) to.global(std::string("torch\n") + names->python + "\n");

  to.opcode(kTuple);
  to.opcode(kReduce);
}

}  // namespace

const char* PickleValue::kind_name() const {
  switch (kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInt:
      return "an int";
    case Kind::kFloat:
      return "a float";
    case Kind::kString:
      return "a str";
    case Kind::kBytes:
      return "bytes";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kDict:
      return "a dict";
    case Kind::kDtype:
      return "a dtype";
    case Kind::kStorageClass:
      return "a storage class";
    case Kind::kStorage:
      return "a storage";
    case Kind::kTensor:
      return "a tensor";
    case Kind::kFunction:
      return "a function";
  }
  return "?";
}

Pickle::Pickle(std::string_view bytes)
    : value_(Machine(bytes, values_).run()) {}

std::string pickle_tensors(const std::vector<PickledTensor>& tensors) {
  Writer writer;
  writer.protocol();
  writer.ordered_dict();
  writer.opcode(kMark);
  for (const PickledTensor& tensor : tensors) {
    writer.text(tensor.name);
    write_tensor(writer, tensor);
  }
  writer.opcode(kSetItems);
  return writer.take();
}

}  // namespace gpipe::internal
