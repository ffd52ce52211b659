#include "models/weights/safetensors_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/testing/allocation_meter.h"
#include "models/testing/files.h"

namespace gpipe::internal {
namespace {

using namespace std::string_literals;  // "..."s literals
using testing::value_error_of;

std::string header_error(const std::string& json, uint64_t data_bytes = 8) {
  return value_error_of([&] { parse_safetensors_header(json, data_bytes); });
}

// Returns a header with one tensor, "t", of this shape and with these offsets.
std::string one(const std::string& shape, const std::string& offsets,
                const std::string& dtype = "F32") {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"data_offsets":)" + offsets + "}}";
}

TEST(SafetensorsHeaderTest, IsWrittenAsItIsRead) {
  SafetensorsHeader header;
  header.metadata = {{"a", "1"}, {"b \"q\"", "\n\xc3\xbc"}};
  header.entries = {{"x", at::kFloat, {2, 3}, 8, 32},
                    {"y.\"", at::kLong, {}, 0, 8},
                    {"z", at::kBFloat16, {0, 3}, 32, 32}};
  const std::string text = safetensors_header_text(header);
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_EQ(text.substr(0, text.find_last_not_of(' ') + 1),
            R"({"__metadata__":{"a":"1","b \"q\"":"\nü"},)"
            R"("x":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
            R"("y.\"":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
            R"("z":{"dtype":"BF16","shape":[0,3],"data_offsets":[32,32]}})");
  const SafetensorsHeader read = parse_safetensors_header(text, 32);
  EXPECT_EQ(read.metadata, header.metadata);
  EXPECT_EQ(read.entries, header.entries);
  EXPECT_EQ(safetensors_header_text({}), "{}      ");
  EXPECT_TRUE(parse_safetensors_header("{}      ", 0).entries.empty());
}

TEST(SafetensorsHeaderTest, CoversTheDataOnce) {
  EXPECT_EQ(header_error(one("[2]", "[0,8]")), "no error");
  EXPECT_EQ(header_error(one("[2]", "[0,8]"), 9),
            "the header describes 8 bytes of data, but there are 9");
  EXPECT_EQ(header_error(one("[2]", "[0,8]"), 7),
            "the header describes 8 bytes of data, but there are 7");
  EXPECT_EQ(header_error("{}"),
            "the header describes 0 bytes of data, but there are 8");
  EXPECT_EQ(header_error(one("[1]", "[4,8]")),
            "the data of 't' begins at 4, but what is before it ends at 0");
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(header_error(two("[4,8]", "[0,4]")), "no error");
  EXPECT_EQ(header_error(two("[0,4]", "[0,4]"), 4),
            "the data of 'b' begins at 0, but what is before it ends at 4");
  EXPECT_EQ(header_error(two("[0,4]", "[3,7]"), 7),
            "the data of 'b' begins at 3, but what is before it ends at 4");
  EXPECT_EQ(header_error(two("[0,4]", "[5,9]"), 9),
            "the data of 'b' begins at 5, but what is before it ends at 4");
}

TEST(SafetensorsHeaderTest, SizesFitTheShapes) {
  for (const auto& [shape, offsets] :
       std::vector<std::pair<std::string, std::string>>{
           {"[3]", "[0,8]"},
           {"[1]", "[0,8]"},
           {"[0]", "[0,8]"},
           {"[]", "[0,8]"},
           {"[2]", "[8,0]"},
           {"[4611686018427387904]", "[0,8]"},
           {"[4294967296,4294967296,2]", "[0,8]"},
           {"[0,4294967296,4294967296]", "[0,0]"}}) {
    EXPECT_NE(header_error(one(shape, offsets)).find("'t' is Float of shape ["),
              std::string::npos)
        << shape << " " << offsets;
  }
}

TEST(SafetensorsHeaderTest, HasNothingButTheFormat) {
  EXPECT_EQ(header_error(""), "the header does not begin with '{'");
  EXPECT_EQ(header_error(" {}"), "the header does not begin with '{'");
  EXPECT_EQ(header_error("[]"), "the header does not begin with '{'");
  for (const char* broken : {"{", "{}}", "{\"a\"}", "{} x", "{\"\xff\":1}"}) {
    EXPECT_EQ(header_error(broken).rfind("the header is not JSON: ", 0), 0u)
        << broken;
  }
  for (const std::string& wrong :
       {R"({"t":1})"s, R"({"t":null})"s, R"({"t":"x"})"s, R"({"t":[1]})"s}) {
    EXPECT_NE(header_error(wrong).find("'t': is "), std::string::npos) << wrong;
  }
  EXPECT_EQ(header_error(R"({"__metadata__":{"a":1}})"),
            "expected a text, but found 1; the file is damaged (at "
            "'/__metadata__/a')");
  EXPECT_NE(header_error(R"({"__metadata__":{"a":{}}})").find("a text"),
            std::string::npos);
  EXPECT_NE(header_error(R"({"__metadata__":"a"})").find("an object"),
            std::string::npos);
  for (const std::string& wrong :
       {one("2", "[0,8]"), one("[2.0]", "[0,8]"), one("[-2]", "[0,8]"),
        one("[\"2\"]", "[0,8]"), one("[true]", "[0,8]"), one("[1e0]", "[0,8]"),
        one("[99999999999999999999]", "[0,8]"),
        one("[18446744073709551615]", "[0,8]")}) {
    EXPECT_EQ(header_error(wrong).find("'t': \"shape\" "), 0u) << wrong;
  }
  for (const std::string& wrong : {one("[2]", "{}"), one("[2]", "8")}) {
    EXPECT_EQ(header_error(wrong).find("'t': \"data_offsets\" is "), 0u)
        << wrong;
  }
  EXPECT_NE(header_error(one("[[2]]", "[0,8]")).find("levels of nesting"),
            std::string::npos);
  const std::string needs =
      "'t' needs dtype, shape, and data_offsets of 2 numbers";
  EXPECT_EQ(header_error(one("[2]", "[0]")), needs);
  EXPECT_EQ(header_error(one("[2]", "[0,8,8]")), needs);
  EXPECT_EQ(header_error(R"({"t":{"dtype":"F32","shape":[2]}})"), needs);
  EXPECT_EQ(header_error(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})"),
            needs);
  std::string ones = "[1";
  for (int k = 1; k < 65; ++k) ones += ",1";
  EXPECT_EQ(header_error(one(ones + "]", "[0,4]")),
            "the header has a list of more than 64 entries (at '/t/shape')");
  EXPECT_EQ(header_error(one("[2]", "[0,8]", "F6_E2M3")),
            "'t' has dtype 'F6_E2M3', which LibTorch does not have");
  EXPECT_EQ(header_error(R"({"t":{"dtype":"F32","dtype":"F32"}})"),
            "the header has 'dtype' twice (at '/t')");
  EXPECT_NE(header_error(R"({"t":{"color":"red"}})").find("has no \"dtype\""),
            std::string::npos);
  std::string color = one("[2]", "[0,8]");
  color.insert(color.size() - 2, R"(,"color":"red")");
  EXPECT_EQ(header_error(color),
            "'t': there is no \"color\" in a tensor of safetensors; known here "
            "are dtype, shape, data_offsets");
  const std::string entry = one("[0]", "[0,0]").substr(1);
  EXPECT_EQ(
      header_error("{" + entry.substr(0, entry.size() - 1) + "," + entry, 0),
      "the header has 't' twice");
  EXPECT_EQ(header_error(R"({"__metadata__":{"a":"1","a":"2"}})"),
            "the header has 'a' twice (at '/__metadata__')");
  EXPECT_EQ(header_error(R"({"__metadata__":{},"__metadata__":{}})"),
            "the header has '__metadata__' twice");
}

TEST(SafetensorsHeaderTest, NoMetadataMayBeNull) {
  const SafetensorsHeader header = parse_safetensors_header(
      R"({"__metadata__":null,)" + one("[2]", "[0,8]").substr(1), 8);
  EXPECT_TRUE(header.metadata.empty());
  EXPECT_EQ(header.entries.size(), 1u);
  EXPECT_EQ(header_error(R"({"__metadata__":null,"__metadata__":{}})"),
            "the header has '__metadata__' twice");
}

// The shapes that Python's safetensors 0.8 writes for a tensor of [2, 3].
TEST(SafetensorsHeaderTest, CountsNumbersOfFourBitsInTheLastSize) {
  const std::string json = one("[2,6]", "[0,6]", "F4");
  const SafetensorsHeader header = parse_safetensors_header(json, 6);
  EXPECT_EQ(header.entries[0].dtype, at::kFloat4_e2m1fn_x2);
  EXPECT_EQ(header.entries[0].sizes, (std::vector<int64_t>{2, 3}));
  const std::string text = safetensors_header_text(header);
  EXPECT_EQ(text.substr(0, json.size() - 1), R"({"t":{"dtype":"F4","shape":)"
                                             R"([2,6],"data_offsets":[0,6]})");
  EXPECT_EQ(header_error(one("[2,3]", "[0,3]", "F4"), 3),
            "'t' is Float4_e2m1fn_x2 of shape [2, 3]; LibTorch needs a last "
            "size that is a multiple of 2");
  EXPECT_EQ(header_error(one("[]", "[0,1]", "F4"), 1),
            "'t' is Float4_e2m1fn_x2 of shape []; LibTorch needs a last size "
            "that is a multiple of 2");
  EXPECT_NE(header_error(one("[2,4]", "[0,8]", "F4")).find("does not fit"),
            std::string::npos);
}

TEST(SafetensorsHeaderTest, DepthAndLengthAreHarmless) {
  EXPECT_NE(header_error("{\"t\":" + std::string(200000, '[')), "no error");
  std::string deep;
  for (int k = 0; k < 50000; ++k) deep += "{\"a\":";
  EXPECT_NE(header_error(deep), "no error");

  // The shortest possible entries.
  std::string json = "{";
  for (int k = 0; k < 5000; ++k) {
    if (k > 0) json += ",";
    json += "\"" + std::to_string(k) +
            "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  }
  json += "}";
  const testing::AllocationMeter meter;
  EXPECT_EQ(parse_safetensors_header(json, 0).entries.size(), 5000u);
  EXPECT_LE(meter.peak(), 16 * static_cast<int64_t>(json.size()));
  EXPECT_LE(meter.largest(), 16 * static_cast<int64_t>(json.size()));
}

TEST(SafetensorsHeaderTest, SaysWhatCannotBeWritten) {
  const auto error = [](const SafetensorsEntry& entry) {
    SafetensorsHeader header;
    header.entries = {entry};
    return value_error_of([&] { safetensors_header_text(header); });
  };
  EXPECT_EQ(error({"t", at::kComplexDouble, {}, 0, 16}),
            "'t' is ComplexDouble, which safetensors does not support");
  EXPECT_EQ(error({"t", at::kFloat4_e2m1fn_x2, {}, 0, 1}),
            "'t' is Float4_e2m1fn_x2 without a dimension, which safetensors "
            "cannot express; save its view({1})");
  EXPECT_EQ(error({"__metadata__", at::kFloat, {}, 0, 4}),
            "a tensor cannot be called __metadata__ in a safetensors file");
  EXPECT_EQ(error({"\xff", at::kFloat, {}, 0, 4}),
            "'\xff' is not UTF-8, which safetensors requires");
}

}  // namespace
}  // namespace gpipe::internal
