#include "models/exported/value_reader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "models/exported/schema_numbers.h"
#include "models/weights/in_quotes.h"

namespace gpipe::exported {
namespace {

using internal::in_quotes;

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
  std::sort(dimensions.begin(), dimensions.end());
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

ValueId add_value(Program& program, const Json& graph, const std::string& name,
                  bool is_tensor, Origin origin) {
  const auto id = static_cast<ValueId>(program.values.size());
  Value value;
  value.name = name;
  value.is_tensor = is_tensor;
  value.origin = origin;
  value.memory = id;
  if (is_tensor) {
    const Json* meta = find_field(field(graph, "tensor_values"), name.c_str());
    if (meta) {
      for (const Json& each : list(field(*meta, "sizes"))) {
        value.sizes.push_back(read_extent(each, program.symbols));
      }
      value.dense = is_dense(field(*meta, "sizes"), field(*meta, "strides"));
      value.dtype = dtype_of(integer(field(*meta, "dtype")));
    }
  } else if (const Json* extent =
                 find_field(field(graph, "sym_int_values"), name.c_str())) {
    value.extent = read_extent(*extent, program.symbols);
  }
  program.values.push_back(std::move(value));
  return id;
}

}  // namespace gpipe::exported
