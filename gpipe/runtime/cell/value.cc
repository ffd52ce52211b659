#include "gpipe/runtime/cell/value.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

namespace gpipe::internal {

std::string Value::describe() const {
  const std::string count = std::to_string(tensors_.size()) +
                            (tensors_.size() == 1 ? " tensor" : " tensors");
  switch (kind_) {
    case Kind::kTensor:
      return "a tensor";
    case Kind::kVector:
      return "a vector of " + count;
    case Kind::kTuple:
      return "a tuple of " + count;
  }
  return "";
}

void Value::throw_not_tensors(const std::type_info& type) {
  TORCH_CHECK_TYPE(false,
                   "expected a torch::Tensor, a "
                   "std::vector<torch::Tensor> or a std::tuple of 1 to ",
                   kMaxTupleSize, " torch::Tensor, but got ",
                   c10::demangle(type.name()));
}

void Value::check_is(bool same, const std::type_info& asked) const {
  TORCH_CHECK_TYPE(same, "the value is ", describe(), ", but ",
                   c10::demangle(asked.name()),
                   " was asked for; name the type, T, in the call: "
                   "forward<T>(), train_step<T>(), evaluate<T>() or "
                   "output<T>()");
}

}  // namespace gpipe::internal
