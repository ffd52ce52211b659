#include "models/exported/schema.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/testing/files.h"

namespace gpipe::exported {

namespace {

using testing::value_error_of;

Json json_of(const std::string& text) { return internal::parse_json(text, ""); }

TEST(SchemaTest, InfinitiesAreTexts) {
  const Json json = json_of(R"(["Infinity", "-Infinity", "NaN", 2])");
  EXPECT_EQ(real(json[0]), INFINITY);
  EXPECT_EQ(real(json[1]), -INFINITY);
  EXPECT_TRUE(std::isnan(real(json[2])));
  EXPECT_EQ(real(json[3]), 2.0);
  EXPECT_THROW(real(json_of("\"inf\"")), c10::ValueError);
}

TEST(SchemaTest, AUnionHasOneEntry) {
  EXPECT_EQ(alternative(json_of(R"({"as_int": 3})")).name, "as_int");
  EXPECT_EQ(value_error_of([] { alternative(json_of(R"({"a": 1, "b": 2})")); }),
            "expected an object of one entry, but found an object of 2 "
            "entries; the file is damaged");
}

// Returns a graph whose only tensor "x" has these sizes and strides.
Json graph_with(const std::string& sizes, const std::string& strides) {
  return json_of(R"({"tensor_values": {"x": {"dtype": 7, "sizes": )" + sizes +
                 R"(, "strides": )" + strides + R"(}}, "sym_int_values": {}})");
}

// Returns whether a tensor of these sizes and strides is dense.
bool is_dense_with(const std::string& sizes, const std::string& strides) {
  Program program;
  const Json graph = graph_with(sizes, strides);
  GraphValues(graph).add(program, "x", /*is_tensor=*/true, Origin::kNode);
  return program.values.at(0).dense;
}

std::string symbol(const std::string& name, int hint) {
  return R"({"as_expr": {"expr_str": ")" + name + R"(", "hint": {"as_int": )" +
         std::to_string(hint) + "}}}";
}

TEST(ValueReaderTest, ATensorHasSizesAndADtype) {
  Program program;
  const Json graph = graph_with("[" + symbol("s7", 4) + R"(, {"as_int": 3}])",
                                R"([{"as_int": 3}, {"as_int": 1}])");
  const GraphValues values(graph);
  EXPECT_EQ(values.add(program, "x", /*is_tensor=*/true, Origin::kInput), 0);
  const Value& value = program.values.at(0);
  EXPECT_EQ(value.name, "x");
  EXPECT_EQ(value.origin, Origin::kInput);
  EXPECT_EQ(value.memory, 0);
  EXPECT_EQ(value.dtype, c10::ScalarType::Float);
  EXPECT_TRUE(value.dense);
  EXPECT_EQ(shape_text(program, 0), "Float [s7, 3]");
  // A tensor that the file does not describe.
  EXPECT_EQ(values.add(program, "y", /*is_tensor=*/true, Origin::kNode), 1);
  EXPECT_FALSE(program.values.at(1).dtype);
  EXPECT_EQ(program.values.at(1).sizes.size(), 0u);
  EXPECT_EQ(program.values.at(1).memory, 1);
}

TEST(ValueReaderTest, ANumberHasAnExtentIfTheFileSaysSo) {
  Program program;
  const Json graph =
      json_of(R"({"tensor_values": {}, "sym_int_values": {"n": )" +
              symbol("2*s7", 8) + R"(, "three": {"as_int": 3}}})");
  for (const char* each : {"n", "three", "other"}) {
    GraphValues(graph).add(program, each, /*is_tensor=*/false, Origin::kNode);
  }
  ASSERT_TRUE(program.values[0].extent);
  EXPECT_EQ(program.symbols.text(*program.values[0].extent), "2*s7");
  EXPECT_FALSE(program.values[0].is_tensor);
  ASSERT_TRUE(program.values[1].extent);
  EXPECT_EQ(program.values[1].extent->symbol, Extent::kNone);
  EXPECT_EQ(program.values[1].extent->factor, 3);
  EXPECT_FALSE(program.values[2].extent);
}

TEST(ValueReaderTest, ADenseTensorHasNoGaps) {
  const std::string sizes = R"([{"as_int": 2}, {"as_int": 3}])";
  EXPECT_TRUE(is_dense_with(sizes, R"([{"as_int": 3}, {"as_int": 1}])"));
  EXPECT_TRUE(is_dense_with(sizes, R"([{"as_int": 1}, {"as_int": 2}])"));
  EXPECT_FALSE(is_dense_with(sizes, R"([{"as_int": 4}, {"as_int": 1}])"));
  EXPECT_FALSE(is_dense_with(sizes, R"([{"as_int": 0}, {"as_int": 1}])"));
  EXPECT_FALSE(is_dense_with(sizes, R"([{"as_int": 6}, {"as_int": 2}])"));
  // The stride of a dimension of size 1 does not matter.
  EXPECT_TRUE(is_dense_with(R"([{"as_int": 1}, {"as_int": 3}])",
                            R"([{"as_int": 50}, {"as_int": 1}])"));
  // A symbol has the size of the example.
  const std::string rows = "[" + symbol("s7", 4) + R"(, {"as_int": 3}])";
  EXPECT_TRUE(is_dense_with(rows, R"([{"as_int": 3}, {"as_int": 1}])"));
  EXPECT_FALSE(is_dense_with(rows, R"([{"as_int": 6}, {"as_int": 1}])"));
}

TEST(ValueReaderTest, UnknownSizesAndStridesCountAsDense) {
  const std::string unknown = R"({"as_expr": {"expr_str": "s7"}})";
  EXPECT_TRUE(is_dense_with("[" + unknown + "]", R"([{"as_int": 2}])"));
  EXPECT_TRUE(is_dense_with(R"([{"as_int": 4}])", "[" + unknown + "]"));
  EXPECT_TRUE(is_dense_with(R"([{"as_int": 4}])", "[]"));
  // More elements than fit into 64 bits: 2^32 * 2^32.
  EXPECT_TRUE(
      is_dense_with(R"([{"as_int": 4294967296}, {"as_int": 4294967296}])",
                    R"([{"as_int": 4294967296}, {"as_int": 1}])"));
}

TEST(ValueReaderTest, NamesOfTensorsAndNumbers) {
  const Json tensor = json_of(R"({"as_tensor": {"name": "x"}})");
  const Json number = json_of(R"({"as_sym_int": {"as_name": "n"}})");
  const Json constant = json_of(R"({"as_int": 3})");
  EXPECT_EQ(value_name(tensor), "x");
  EXPECT_EQ(value_name(number), "n");
  EXPECT_FALSE(is_named_number(tensor));
  EXPECT_TRUE(is_named_number(number));
  EXPECT_FALSE(is_named_number(constant));
  EXPECT_EQ(value_error_of([&] { (void)value_name(constant); }),
            "expected a value, but found 'as_int'; the file is damaged");
}

TEST(ValueReaderTest, AnUnknownNameIsDamage) {
  const Names names = {{"x", 4}};
  EXPECT_EQ(find_value(names, "x"), 4);
  EXPECT_EQ(value_error_of([&] { find_value(names, "y"); }),
            "the value 'y' is read before it is computed; the file is damaged");
}

TEST(ArgumentReaderTest, AListOfScalarsHasIntegersOrRealNumbers) {
  const c10::TypePtr scalars = c10::ListType::create(c10::NumberType::get());
  const auto read = [&](const std::string& json) {
    return read_argument(json_of(json), scalars, {}).constant;
  };
  const at::Tensor x = torch::arange(4, torch::kDouble).square();
  const auto gradient = [&](const c10::IValue& spacing) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        "aten::gradient", "scalarrayarray");
    torch::jit::Stack stack{x, spacing, std::vector<int64_t>{0}, 1};
    op.callBoxed(stack);
    return stack.at(0).toTensorVector().at(0);
  };
  EXPECT_TRUE(at::equal(gradient(read(R"({"as_ints": [2]})")),
                        torch::tensor({0.5, 1.0, 2.0, 2.5}, torch::kDouble)));
  EXPECT_TRUE(at::equal(gradient(read(R"({"as_floats": [0.5]})")),
                        torch::tensor({2.0, 4.0, 8.0, 10.0}, torch::kDouble)));
  EXPECT_EQ(read(R"({"as_floats": ["Infinity"]})").toListRef().at(0).toDouble(),
            INFINITY);
}

}  // namespace

}  // namespace gpipe::exported
