// Reads pickles of state dicts without executing code, and writes them as
// torch.save does. The opcodes are those of Python's pickletools.py. PyTorch's
// torch/serialization.py and torch/_utils.py define how torch.save uses them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::internal {

// One object of a pickle. Several objects may refer to the same object, and
// references may form cycles. So code that follows all references may never
// end.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kLargeInt,  // an integer of more than 8 bytes; its value is not kept
    kFloat,
    kString,
    kBytes,
    kTuple,
    kList,
    kSet,
    kDict,
    kDtype,         // torch.float32
    kStorageClass,  // torch.FloatStorage
    kStorage,       // a persistent id that names a storage
    kTensor,        // a call of torch._utils._rebuild_tensor_v2 or similar
    kFunction,      // one of the few functions that the reader knows
    kName,          // any other name, such as "argparse.Namespace"
    kObject,        // the result of a call of a kName; nothing was executed
  };

  Kind kind = Kind::kNone;

  // For kDtype, kStorageClass, kStorage and kTensor. Untyped storages have
  // kByte.
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  // For kBool and kInt, the value. For kStorage, the number of elements. For
  // kTensor, the offset in elements.
  int64_t integer = 0;

  double real = 0;  // kFloat

  // For kString and kBytes, the contents. For kStorage, its key. For kName, the
  // part after the module, which is a kString in `items`. Points into the
  // pickle.
  std::string_view text;

  // For kTuple, kList and kSet, the elements. For kDict: key, value, key,
  // value, ... in the order in which they were set; of equal keys the last one
  // counts. For kTensor: a kStorage and two kTuples of kInts, the sizes and the
  // strides. Both tuples have the same length and no negative numbers. For
  // kObject: the kName that was called.
  std::vector<const PickleValue*> items;

  // Returns the kind for error messages, for example "a list" or "None".
  const char* kind_name() const;

  // Returns the name of a kName or kObject in quotes: "'argparse.Namespace'".
  std::string quoted_name() const;
};

// The object in a pickle of protocols 2 to 5, as torch.save writes it.
//
// A pickle is a program. The constructor runs it and builds texts, numbers and
// containers. The reader knows these names: collections.OrderedDict, torch.Size
// and Tensor, torch.nn.parameter.Parameter and Buffer, the functions
// _rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3, _rebuild_parameter,
// _rebuild_parameter_with_state and _rebuild_device_tensor_from_cpu_tensor of
// torch._utils, torch._tensor._rebuild_from_type_v2, and torch's storage
// classes and dtypes. A "call" of a name creates one of the values above; no
// code is executed.
//
// Any other name is a kName, and its call a kObject: a placeholder that keeps
// the name alone. So entries beside the weights, such as options, generators
// and the state of an optimizer, do not stop the reader. A tensor that is not a
// plain one (sparse, quantized, of another class, or with a pending conjugation
// or negation) is a kObject, too. Opcodes that torch.save does not use are
// errors.
//
// A length in the pickle is accepted only if that many bytes follow. The memory
// per byte of the pickle is bounded, at most about 150 bytes in total. There is
// no recursion.
//
// A tensor's hooks, requires_grad and Python attributes are ignored, and so are
// attributes that are set on an OrderedDict (PyTorch's "_metadata"). The items
// of a kObject are not kept.
//
// Throws c10::ValueError with the byte position if the pickle is not valid.
// Thread-safe.
class Pickle {
 public:
  // `bytes`: the pickle. It must outlive this object.
  explicit Pickle(std::string_view bytes);

  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& value() const { return *value_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* value_ = nullptr;
};

// The description of a tensor for pickle_tensors().
struct PickledTensor {
  std::string name;
  std::string key;  // key of its storage
  int64_t storage_bytes;
  c10::ScalarType dtype;  // must be in the table of models/weights/formats.h
  int64_t offset;         // in elements
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// Returns the pickle (protocol 2) of an OrderedDict of `tensors`, as torch.save
// writes it. The tensors are on the CPU and do not require a gradient. Throws
// c10::ValueError if a dtype is not in the table of models/weights/formats.h,
// or if a name has 4 GiB or more. Thread-safe.
std::string pickle_tensors(const std::vector<PickledTensor>& tensors);

}  // namespace gpipe::internal
