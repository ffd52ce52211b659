#include "models/weights/pickle_writer.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "models/weights/dtypes.h"
#include "models/weights/in_quotes.h"
#include "models/weights/pickle_opcodes.h"

namespace gpipe::internal {
namespace {

using enum PickleOpcode;

// A writer of protocol 2. It memoizes only names.
class Writer {
 public:
  std::string take() {
    opcode(kStop);
    return std::move(bytes_);
  }

  void opcode(PickleOpcode opcode) {
    bytes_.push_back(static_cast<char>(opcode));
  }

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
