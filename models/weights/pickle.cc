#include "models/weights/pickle.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <unordered_map>

#include "models/weights/in_quotes.h"
#include "models/weights/pickle_objects.h"
#include "models/weights/pickle_opcodes.h"

namespace gpipe::internal {
namespace {

using Kind = PickleValue::Kind;
using enum PickleOpcode;

// The maximum number of nested MARKs. A state dict has 3.
constexpr std::size_t kMaxMarks = 1000;

// The machine that executes the opcodes of a pickle. The comment of Pickle in
// the header says what the opcodes may do.
class Machine : private PickleObjects {
 public:
  Machine(std::string_view bytes, std::deque<PickleValue>& values)
      : PickleObjects(values), bytes_(bytes) {}

  const PickleValue* run() {
    while (true) {
      at_ = position_;
      const auto opcode = static_cast<PickleOpcode>(byte());
      if (opcode == kStop) return pop();
      step(opcode);
    }
  }

 private:
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

  void step(PickleOpcode opcode) {
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
        return marks_.push_back(stack_.size());
      case kPop:
        pop();
        return;
      case kPopMark:
        dropped_.clear();
        return pop_mark(dropped_);
      case kDup:
        return push(top());

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
        return push(global(module, line()));
      }
      case kStackGlobal: {
        const PickleValue* name = pop(Kind::kString, "a name");
        return push(
            global(pop(Kind::kString, "a module's name")->text, name->text));
      }
      case kBinPersId:
        return push(storage(*pop()));
      case kNewObjEx:
        pop();  // arguments by name
        [[fallthrough]];
      case kReduce:
      case kNewObj: {
        const PickleValue* arguments =
            pop(Kind::kTuple, "what a function is called with");
        const PickleValue* function = pop();
        return push(call(*function, *arguments));
      }
      case kBuild: {
        pop();
        const PickleValue* object = top();
        return check(
            object->kind == Kind::kDict || object->kind == Kind::kObject,
            "sets attributes of ", object->kind_name());
      }
      default:
        return push_scalar(opcode);
    }
  }

  void push_scalar(PickleOpcode opcode) {
    switch (opcode) {
      case kNone:
        push_new(Kind::kNone);
        return;
      case kNewTrue:
      case kNewFalse:
        push_new(Kind::kBool)->integer = opcode == kNewTrue;
        return;
      case kBinInt:
        return push_integer(static_cast<int32_t>(number(4)));
      case kBinInt1:
        return push_integer(byte());
      case kBinInt2:
        return push_integer(static_cast<int64_t>(number(2)));
      case kLong1:
        return push_long(number(1));
      case kLong4:
        return push_long(number(4));
      case kBinFloat:
        push_new(Kind::kFloat)->real = real();
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
      default:
        return build_container(opcode);
    }
  }

  void build_container(PickleOpcode opcode) {
    switch (opcode) {
      case kEmptyTuple:
        return push_tuple(0);
      case kTuple1:
        return push_tuple(1);
      case kTuple2:
        return push_tuple(2);
      case kTuple3:
        return push_tuple(3);
      case kTuple:
        return push_marked(Kind::kTuple);

      case kEmptyList:
        push_new(Kind::kList);
        return;
      case kList:
        return push_marked(Kind::kList);
      case kAppend: {
        const PickleValue* item = pop();
        return items_of(top(), Kind::kList).push_back(item);
      }
      case kAppends:
        return pop_mark(items_below_mark(Kind::kList));

      case kEmptySet:
        push_new(Kind::kSet);
        return;
      case kFrozenSet:
        return push_marked(Kind::kSet);
      case kAddItems:
        return pop_mark(items_below_mark(Kind::kSet));

      case kEmptyDict:
        push_new(Kind::kDict);
        return;
      case kDict:
        push_marked(Kind::kDict);
        return check_pairs(stack_.back()->items.size());
      case kSetItem: {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        auto& items = items_of(top(), Kind::kDict);
        items.push_back(key);
        return items.push_back(value);
      }
      case kSetItems: {
        auto& items = items_below_mark(Kind::kDict);
        check_pairs(stack_.size() - marks_.back());
        return pop_mark(items);
      }
      default:
        fail("opcode ", static_cast<int>(opcode), " (",
             in_quotes(bytes_.substr(at_, 1)),
             "), which torch.save does not use for a state dict; nothing was "
             "executed");
    }
  }

  const std::string_view bytes_;
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

}  // namespace gpipe::internal
