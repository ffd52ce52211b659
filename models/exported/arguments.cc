#include "models/exported/arguments.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/complex.h>

#include <utility>
#include <vector>

#include "models/exported/schema_numbers.h"
#include "models/weights/in_quotes.h"

namespace gpipe::exported {
namespace {

using c10::IValue;
using c10::TypeKind;
using Kind = Argument::Kind;

// Returns T of T?.
c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

// Returns T of T[] and T[]?; null if `type` is no list.
c10::TypePtr element_of(const c10::TypePtr& type) {
  const auto list = without_optional(type)->cast<c10::ListType>();
  return list ? list->getElementType() : nullptr;
}

bool is_float(const c10::TypePtr& type) {
  return type && without_optional(type)->kind() == TypeKind::FloatType;
}

// Reads arguments of one type of the schema.
class Reader {
 public:
  Reader(const c10::TypePtr& type, const FindValue& find)
      : type_(without_optional(type)), element_(element_of(type)), find_(find) {
    argument_.wants_tensor = type_->kind() == TypeKind::TensorType;
  }

  Argument read(const Json& json) {
    const auto [kind, value] = alternative(json);
    if (!read_constant(kind, value) && !read_values(kind, value)) {
      TORCH_CHECK_VALUE(false, "an argument has kind ",
                        internal::in_quotes(kind),
                        ", which cannot be passed to an operator in C++");
    }
    const IValue& constant = argument_.constant;
    if (argument_.wants_tensor && argument_.kind == Kind::kConstant &&
        !constant.isNone()) {
      argument_.constant = wrapped_number(constant);
    }
    return std::move(argument_);
  }

 private:
  bool read_constant(const std::string& kind, const Json& value) {
    IValue& constant = argument_.constant;
    if (kind == "as_none") {
      constant = IValue();
    } else if (kind == "as_int") {
      constant = is_float(type_) ? IValue(static_cast<double>(integer(value)))
                                 : IValue(integer(value));
    } else if (kind == "as_float") {
      constant = real(value);
    } else if (kind == "as_bool") {
      constant = boolean(value);
    } else if (kind == "as_string") {
      constant = text(value);
    } else if (kind == "as_complex") {
      constant = c10::complex<double>(real(field(value, "real")),
                                      real(field(value, "imag")));
    } else if (kind == "as_scalar_type") {
      constant = static_cast<int64_t>(dtype_of(integer(value)));
    } else if (kind == "as_memory_format") {
      constant = static_cast<int64_t>(memory_format_of(integer(value)));
    } else if (kind == "as_layout") {
      check_layout(integer(value));
      constant = static_cast<int64_t>(c10::kStrided);
    } else if (kind == "as_device") {
      argument_.kind = Kind::kDevice;
    } else if (kind == "as_ints" || kind == "as_floats") {
      read_numbers(value);
    } else if (kind == "as_bools") {
      c10::List<bool> flags;
      for (const Json& each : list(value)) flags.push_back(boolean(each));
      constant = std::move(flags);
    } else {
      return false;
    }
    return true;
  }

  // An empty list may have any kind, because Python does not know its type.
  void read_numbers(const Json& value) {
    if (list(value).empty() && is_list_of(TypeKind::TensorType)) {
      argument_.kind =
          element_is_optional() ? Kind::kOptionalTensors : Kind::kTensors;
    } else if (is_float(element_) ||
               (!element_ && !value.empty() && value[0].is_number_float())) {
      std::vector<double> numbers;
      for (const Json& each : value) numbers.push_back(real(each));
      argument_.constant = std::move(numbers);
    } else {
      std::vector<int64_t> numbers;
      for (const Json& each : value) numbers.push_back(integer(each));
      argument_.constant = std::move(numbers);
    }
  }

  bool read_values(const std::string& kind, const Json& value) {
    if (kind == "as_tensor") {
      argument_.kind = Kind::kValue;
      add_value(text(field(value, "name")));
    } else if (kind == "as_optional_tensor") {
      const auto [name, inner] = alternative(value);
      if (name == "as_tensor") {
        argument_.kind = Kind::kValue;
        add_value(text(field(inner, "name")));
      }
    } else if (kind == "as_sym_int" || kind == "as_sym_float" ||
               kind == "as_sym_bool") {
      const auto [name, inner] = alternative(value);
      if (name != "as_name") return read_constant(name, inner);
      argument_.kind = Kind::kValue;
      add_value(text(inner));
    } else if (kind == "as_tensors") {
      // The schema may say Tensor?[] where the file has a list of tensors.
      argument_.kind =
          element_is_optional() ? Kind::kOptionalTensors : Kind::kTensors;
      for (const Json& each : list(value)) add_value(text(field(each, "name")));
    } else if (kind == "as_optional_tensors") {
      argument_.kind = Kind::kOptionalTensors;
      for (const Json& each : list(value)) {
        const auto [name, inner] = alternative(each);
        if (name == "as_tensor") {
          add_value(text(field(inner, "name")));
        } else {
          argument_.elements.emplace_back();
        }
      }
    } else if (kind == "as_sym_ints") {
      argument_.kind = Kind::kIntegers;
      for (const Json& each : list(value)) {
        const auto [name, inner] = alternative(each);
        if (name == "as_name") {
          add_value(text(inner));
        } else {
          argument_.elements.push_back({kNoValue, integer(inner)});
        }
      }
    } else {
      return false;
    }
    return true;
  }

  bool is_list_of(TypeKind kind) const {
    return element_ && without_optional(element_)->kind() == kind;
  }
  bool element_is_optional() const {
    return element_ && element_->kind() == TypeKind::OptionalType;
  }
  void add_value(const std::string& name) {
    argument_.elements.push_back({find_(name), 0});
  }

  const c10::TypePtr type_, element_;
  const FindValue& find_;
  Argument argument_;
};

}  // namespace

Argument read_argument(const Json& json, const c10::TypePtr& type,
                       const FindValue& find) {
  return Reader(type, find).read(json);
}

at::Tensor wrapped_number(const IValue& number) {
  TORCH_CHECK_VALUE(
      number.isDouble() || number.isInt() || number.isBool() ||
          number.isComplexDouble(),
      "an operator wants a tensor or a number, but the program passes a ",
      number.tagKind());
  const at::ScalarType dtype = number.isDouble()          ? at::kDouble
                               : number.isBool()          ? at::kBool
                               : number.isComplexDouble() ? at::kComplexDouble
                                                          : at::kLong;
  // With a device, since a MetaGuard moves tensors that have none. A number on
  // the CPU goes with tensors of all devices.
  const at::Tensor tensor = at::scalar_tensor(
      number.toScalar(), at::TensorOptions().dtype(dtype).device(at::kCPU));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace gpipe::exported
