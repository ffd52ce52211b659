// Pickles of state dicts: read by a machine that can execute nothing, and
// written. The opcodes are those of Python's pickletools.py; what torch.save
// does with them is in PyTorch's torch/serialization.py and torch/_utils.py.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// One object of a pickle. There may be several ways to it, and circles: nobody
// may walk through all that can be reached and expect to come to an end.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kBytes,
    kTuple,
    kList,
    kDict,
    kDtype,         // torch.float32
    kStorageClass,  // torch.FloatStorage
    kStorage,       // a persistent id that names a storage
    kTensor,        // what a call of torch._utils._rebuild_tensor_v2 stands for
    kFunction,      // one of the few that may be called
  };

  Kind kind = Kind::kNone;

  // kDtype, kStorageClass, kStorage, kTensor; kByte for untyped storages.
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  // kBool, kInt; kStorage: how many elements; kTensor: the offset, in elements.
  int64_t integer = 0;

  double real = 0;  // kFloat

  // kString, kBytes; kStorage: its key. Points into the pickle.
  std::string_view text;

  // kTuple, kList; kDict: key, value, key, value, ... as they were set, so that
  // of equal keys the last one counts. kTensor: a kStorage and two kTuples of
  // as many kInts, the sizes and the strides, neither negative.
  std::vector<const PickleValue*> items;

  // "a list", "None", for messages.
  const char* kind_name() const;
};

// The object in a pickle of protocols 2 to 5, as torch.save writes it.
//
// A pickle is a program. This machine builds texts, numbers and containers, and
// knows these names: collections.OrderedDict, torch.Size, torch.device,
// torch._utils._rebuild_tensor_v2, _v3, _rebuild_parameter and
// _rebuild_parameter_with_state, the storage classes and dtypes of torch.
// "Calling" them makes one of the values above; there is no code behind a name.
// All others, and opcodes that torch.save does not use, are errors.
//
// No length in the pickle is believed before as many bytes have been seen, and
// what one byte can make the machine allocate is bounded: in all it takes at
// most some 150 bytes per byte of the pickle. There is no recursion.
//
// A tensor's metadata (a conjugation that is still to be done) is an error, its
// hooks and requires_grad are passed over, as is what is set as attributes of
// an OrderedDict (PyTorch's "_metadata"). A torch.device is the tuple of its
// arguments.
//
// Errors: c10::ValueError, which says at which byte; of a name, that nothing
// has been executed. Threads: any.
class Pickle {
 public:
  // `bytes` must live as long as this.
  explicit Pickle(std::string_view bytes);

  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& value() const { return *value_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* value_ = nullptr;
};

// A tensor for pickle_tensors().
struct PickledTensor {
  std::string name;
  std::string key;  // of its storage
  int64_t storage_bytes;
  c10::ScalarType dtype;  // one of weights/dtypes.h
  int64_t offset;         // in elements
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// The pickle, protocol 2, of an OrderedDict of these tensors, without gradient
// and on the CPU, as torch.save writes it. Threads: pure function.
std::string pickle_tensors(const std::vector<PickledTensor>& tensors);

}  // namespace gpipe
