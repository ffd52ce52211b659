#include "models/exported/schema.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe::exported {

using internal::in_quotes;
using internal::refuse_json;

double real(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string& word = text(json);
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  refuse_json("a number", json);
}

Alternative alternative(const Json& json) {
  if (!json.is_object() || json.size() != 1) {
    refuse_json("an object of one entry", json);
  }
  const auto entry = json.begin();
  return {entry.key(), entry.value()};
}

// ---- Numbers

c10::ScalarType dtype_of(int64_t number) {
  using enum c10::ScalarType;
  static constexpr c10::ScalarType kFrom1[] = {
      Byte,   Char,        Short,        Int,           Long, Half,    Float,
      Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, BFloat16};
  static constexpr c10::ScalarType kFrom28[] = {
      UInt16,          Float8_e4m3fn,  Float8_e5m2, Float8_e4m3fnuz,
      Float8_e5m2fnuz, Float8_e8m0fnu, UInt32,      UInt64};
  if (number >= 1 && number <= 13) return kFrom1[number - 1];
  TORCH_CHECK_VALUE(number >= 28 && number <= 35, "the dtype number ", number,
                    " is unknown; 1 to 13 and 28 to 35 are known");
  return kFrom28[number - 28];
}

void check_layout(int64_t number) {
  constexpr int64_t kStrided = 7;
  TORCH_CHECK_VALUE(number == kStrided, "the layout number ", number,
                    " is not supported; only strided tensors (", kStrided,
                    ") are");
}

// ---- Values

namespace {

// The start of the names of all kinds of numbers in a union Argument.
constexpr std::string_view kNumber = "as_sym_";

// Returns the value that a union SymInt had in the example of the export; -1 if
// the file does not say.
int64_t example_of(const Json& json) {
  const auto [kind, value] = alternative(json);
  if (kind == "as_int") return integer(value);
  const Json* hint = find_field(value, "hint");
  const Json* number = hint ? find_field(*hint, "as_int") : nullptr;
  return number ? integer(*number) : -1;
}

// Returns whether a tensor of these sizes and strides has no gaps. Unknown
// sizes count as dense.
bool is_dense(const Json& sizes, const Json& strides) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (std::size_t k = 0; k < list(sizes).size(); ++k) {
    if (k >= list(strides).size()) return true;
    const int64_t size = example_of(sizes[k]), stride = example_of(strides[k]);
    if (size < 0 || stride < 0) return true;
    if (size > 1) dimensions.emplace_back(stride, size);
  }
  std::ranges::sort(dimensions);
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride != expected) return false;
    if (__builtin_mul_overflow(expected, size, &expected)) return true;
  }
  return true;
}

// Returns the extent in a union SymInt of the schema.
Extent read_extent(const Json& json, Symbols& symbols) {
  const auto [kind, value] = alternative(json);
  if (kind == "as_int") return {Extent::kNone, integer(value)};
  return symbols.parse(text(field(value, "expr_str")));
}

}  // namespace

ValueId find_value(const Names& names, const std::string& name) {
  const auto found = names.find(name);
  TORCH_CHECK_VALUE(found != names.end(), "the value ", in_quotes(name),
                    " is read before it is computed; the file is damaged");
  return found->second;
}

const std::string& value_name(const Json& argument) {
  const auto [kind, value] = alternative(argument);
  if (kind == "as_tensor") return text(field(value, "name"));
  TORCH_CHECK_VALUE(is_named_number(argument), "expected a value, but found ",
                    in_quotes(kind), "; the file is damaged");
  return text(field(value, "as_name"));
}

bool is_named_number(const Json& argument) {
  return alternative(argument).name.starts_with(kNumber);
}

GraphValues::GraphValues(const Json& graph) {
  const auto note = [&](const char* kind, auto& values) {
    for (const auto& [name, value] : object(field(graph, kind)).items()) {
      if (!value.is_null()) values.emplace(name, &value);
    }
  };
  note("tensor_values", tensors_);
  note("sym_int_values", numbers_);
}

ValueId GraphValues::add(Program& program, const std::string& name,
                         bool is_tensor, Origin origin) const {
  const auto id = static_cast<ValueId>(program.values.size());
  Value value;
  value.name = name;
  value.is_tensor = is_tensor;
  value.origin = origin;
  value.memory = id;
  const auto& known = is_tensor ? tensors_ : numbers_;
  const auto found = known.find(name);
  if (found != known.end() && is_tensor) {
    const Json& meta = *found->second;
    for (const Json& each : list(field(meta, "sizes"))) {
      value.sizes.push_back(read_extent(each, program.symbols));
    }
    value.dense = is_dense(field(meta, "sizes"), field(meta, "strides"));
    value.dtype = dtype_of(integer(field(meta, "dtype")));
  } else if (found != known.end()) {
    value.extent = read_extent(*found->second, program.symbols);
  }
  program.values.push_back(std::move(value));
  return id;
}

// ---- Arguments

namespace {

using c10::IValue;
using c10::TypeKind;
using Kind = Argument::Kind;

c10::MemoryFormat memory_format_of(int64_t number) {
  using enum c10::MemoryFormat;
  static constexpr c10::MemoryFormat kFrom1[] = {Contiguous, ChannelsLast,
                                                 ChannelsLast3d, Preserve};
  TORCH_CHECK_VALUE(number >= 1 && number <= 4, "the memory format number ",
                    number, " is unknown; 1 to 4 are known");
  return kFrom1[number - 1];
}

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
  Reader(const c10::TypePtr& type, const Names& names)
      : type_(without_optional(type)),
        element_(element_of(type)),
        names_(names) {
    argument_.wants_tensor = type_->kind() == TypeKind::TensorType;
  }

  Argument read(const Json& json) {
    const auto [kind, value] = alternative(json);
    if (!read_constant(kind, value) && !read_values(kind, value)) {
      TORCH_CHECK_VALUE(false, "an argument has kind ", in_quotes(kind),
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
      read_numbers(value, kind == "as_floats");
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
  void read_numbers(const Json& value, bool floats) {
    if (list(value).empty() && is_list_of(TypeKind::TensorType)) {
      argument_.kind =
          element_is_optional() ? Kind::kOptionalTensors : Kind::kTensors;
    } else if (is_float(element_) ||
               (!element_ && !value.empty() && value[0].is_number_float())) {
      std::vector<double> numbers;
      for (const Json& each : value) numbers.push_back(real(each));
      argument_.constant = std::move(numbers);
    } else if (is_list_of(TypeKind::NumberType)) {
      c10::impl::GenericList numbers(c10::NumberType::get());
      for (const Json& each : value) {
        numbers.push_back(floats ? IValue(real(each)) : IValue(integer(each)));
      }
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
    argument_.elements.push_back({find_value(names_, name), 0});
  }

  const c10::TypePtr type_, element_;
  const Names& names_;
  Argument argument_;
};

}  // namespace

Argument read_argument(const Json& json, const c10::TypePtr& type,
                       const Names& names) {
  return Reader(type, names).read(json);
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
