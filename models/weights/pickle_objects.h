// The objects that a pickle may make by name, without executing code. The
// comment of Pickle (models/weights/pickle.h) lists the names.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <deque>
#include <string_view>

#include "models/weights/pickle.h"

namespace gpipe::internal {

// The part of a pickle reader that makes values. All methods but check() and
// add() throw c10::ValueError if the pickle is not valid. Not thread-safe.
class PickleObjects {
 protected:
  // Adds all values to `values`, which must outlive this object.
  explicit PickleObjects(std::deque<PickleValue>& values) : values_(values) {}

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

  PickleValue* add(PickleValue::Kind kind);

  // Returns the dtype, storage class or function of this name, or a kName.
  PickleValue* global(std::string_view module, std::string_view name);

  // Returns the result of calling what global() or call() has returned with a
  // tuple. A call of a kName or kObject, or a call that makes no plain tensor,
  // returns a kObject.
  PickleValue* call(const PickleValue& function, const PickleValue& arguments);

  // Returns the storage of a persistent id:
  // ('storage', <class>, key, location, elements).
  PickleValue* storage(const PickleValue& id);

  std::size_t at_ = 0;  // position of the opcode that is being executed

 private:
  PickleValue* name(std::string_view module, std::string_view name);
  PickleValue* object(const PickleValue& called);
  PickleValue* copy(const PickleValue& value);
  PickleValue* tensor(const PickleValue& function,
                      const PickleValue& arguments);
  PickleValue* tensor_of_class(const PickleValue& function,
                               const PickleValue& arguments);
  void check_sizes(const PickleValue& tuple, const char* what) const;

  std::deque<PickleValue>& values_;
};

}  // namespace gpipe::internal
