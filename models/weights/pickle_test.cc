#include "models/weights/pickle.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/testing/allocation_meter.h"
#include "models/testing/files.h"

namespace gpipe::internal {
namespace {

using Kind = PickleValue::Kind;
using namespace std::string_literals;  // "..."s literals may contain \0
using testing::pickle_of_python;
using testing::value_error_of;

// Returns the bytes of Python's struct.pack("<I", value).
std::string u32(uint32_t value) {
  std::string bytes;
  for (int k = 0; k < 4; ++k) bytes += static_cast<char>(value >> (8 * k));
  return bytes;
}

std::string text(const std::string& text) {
  return "X" + u32(static_cast<uint32_t>(text.size())) + text;
}

std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

std::string error_in(const std::string& bytes) {
  return value_error_of([&] { Pickle pickle(bytes); });
}

std::vector<int64_t> integers(const PickleValue& tuple) {
  std::vector<int64_t> result;
  for (const PickleValue* each : tuple.items) result.push_back(each->integer);
  return result;
}

TEST(PickleTest, ReadsNumbersTextsAndContainers) {
  // (None, True, False, 255, 65535, -2, 2**40, -1, 1.5, "text", b"\0\n",
  //  [1, 2], {"a": 1, "b": 2, "c": 3})
  const std::string bytes =
      "\x80\x02(N\x88\x89K\xffM\xff\xffJ\xfe\xff\xff\xff"
      "\x8a\x06\0\0\0\0\0\x01\x8a\x01\xffG\x3f\xf8\0\0\0\0\0\0"s +
      text("text") + "C\x02\0\n]K\x01"s + "a(K\x02" + "e}" + text("a") +
      "K\x01s(" + text("b") + "K\x02" + text("c") + "K\x03ut.";
  const Pickle pickle(bytes);
  const auto& items = pickle.value().items;
  ASSERT_EQ(pickle.value().kind, Kind::kTuple);
  ASSERT_EQ(items.size(), 13u);
  EXPECT_EQ(items[0]->kind, Kind::kNone);
  EXPECT_EQ(items[1]->kind, Kind::kBool);
  EXPECT_EQ(items[1]->integer, 1);
  EXPECT_EQ(items[2]->integer, 0);
  EXPECT_EQ(items[3]->integer, 255);
  EXPECT_EQ(items[4]->integer, 65535);
  EXPECT_EQ(items[5]->integer, -2);
  EXPECT_EQ(items[6]->integer, int64_t{1} << 40);
  EXPECT_EQ(items[7]->integer, -1);
  EXPECT_EQ(items[8]->kind, Kind::kFloat);
  EXPECT_EQ(items[8]->real, 1.5);
  EXPECT_EQ(items[9]->kind, Kind::kString);
  EXPECT_EQ(items[9]->text, "text");
  EXPECT_EQ(items[10]->kind, Kind::kBytes);
  EXPECT_EQ(items[10]->text, std::string_view("\0\n", 2));
  EXPECT_EQ(items[11]->kind, Kind::kList);
  EXPECT_EQ(integers(*items[11]), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(items[12]->kind, Kind::kDict);
  ASSERT_EQ(items[12]->items.size(), 6u);
  EXPECT_EQ(items[12]->items[4]->text, "c");
  EXPECT_EQ(items[12]->items[5]->integer, 3);
}

TEST(PickleTest, ReadsWhatPythonWritesInEveryProtocol) {
  for (const char* name : {"protocol3", "protocol4", "protocol5"}) {
    const std::string bytes = pickle_of_python(name);
    const Pickle pickle(bytes);
    const PickleValue& dict = pickle.value();
    ASSERT_EQ(dict.kind, Kind::kDict);
    ASSERT_EQ(dict.items.size(), 2u);
    EXPECT_EQ(dict.items[0]->text, "w");
    const PickleValue& tensor = *dict.items[1];
    ASSERT_EQ(tensor.kind, Kind::kTensor);
    EXPECT_EQ(tensor.dtype, at::kFloat);
    EXPECT_EQ(tensor.items[0]->text, "0");
    EXPECT_EQ(tensor.items[0]->integer, 2);
    EXPECT_EQ(integers(*tensor.items[1]), std::vector<int64_t>{2});
    EXPECT_EQ(integers(*tensor.items[2]), std::vector<int64_t>{1});
  }
}

TEST(PickleTest, ReadsEveryKindOfTensorOfPython) {
  const std::string bytes = pickle_of_python("strided");
  const Pickle pickle(bytes);
  const auto& items = pickle.value().items;
  ASSERT_EQ(items.size(), 20u);
  std::vector<std::string> names;
  std::vector<at::ScalarType> dtypes;
  for (std::size_t k = 0; k < items.size(); k += 2) {
    names.emplace_back(items[k]->text);
    ASSERT_EQ(items[k + 1]->kind, Kind::kTensor);
    dtypes.push_back(items[k + 1]->dtype);
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "transposed", "row", "bfloat16", "float8", "complex",
                       "bool", "int64", "parameter", "uint16", "empty"}));
  EXPECT_EQ(dtypes, (std::vector<at::ScalarType>{
                        at::kFloat, at::kFloat, at::kBFloat16,
                        at::kFloat8_e4m3fn, at::kComplexFloat, at::kBool,
                        at::kLong, at::kFloat, at::kUInt16, at::kFloat}));
  EXPECT_EQ(integers(*items[1]->items[1]), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(integers(*items[1]->items[2]), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(items[3]->integer, 3);
  EXPECT_EQ(items[7]->items[0]->dtype, at::kByte);  // untyped
  EXPECT_TRUE(items[13]->items[1]->items.empty());
}

TEST(PickleTest, WritesWhatItReads) {
  const std::vector<PickledTensor> tensors = {
      {"a.weight", "0", 24, at::kFloat, 0, {2, 3}, {3, 1}},
      {"\xc3\xbc", "0", 24, at::kFloat, 300, {3, 2}, {1, 70000}},
      {"scalar", "7", int64_t{8} << 40, at::kLong, int64_t{1} << 39, {}, {}},
      {"float8", "1", 6, at::kFloat8_e5m2, 5, {1}, {1}},
  };
  const std::string bytes = pickle_tensors(tensors);
  const Pickle pickle(bytes);
  const auto& items = pickle.value().items;
  ASSERT_EQ(items.size(), 8u);
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const PickledTensor& tensor = tensors[k];
    const PickleValue& value = *items[2 * k + 1];
    EXPECT_EQ(items[2 * k]->text, tensor.name);
    ASSERT_EQ(value.kind, Kind::kTensor);
    EXPECT_EQ(value.dtype, tensor.dtype);
    EXPECT_EQ(value.integer, tensor.offset);
    EXPECT_EQ(value.items[0]->text, tensor.key);
    EXPECT_EQ(value.items[0]->integer *
                  static_cast<int64_t>(c10::elementSize(value.items[0]->dtype)),
              tensor.storage_bytes);
    EXPECT_EQ(integers(*value.items[1]), tensor.sizes);
    EXPECT_EQ(integers(*value.items[2]), tensor.strides);
  }
  EXPECT_EQ(bytes, pickle_tensors(tensors));
  EXPECT_EQ(Pickle(pickle_tensors({})).value().kind, Kind::kDict);
}

TEST(PickleTest, ExecutesNothingAndKeepsTheNameThatWasAskedFor) {
  const std::string evil_bytes = pickle_of_python("evil");
  const Pickle evil(evil_bytes);
  EXPECT_EQ(evil.value().items[3]->kind, Kind::kObject);
  EXPECT_EQ(evil.value().items[3]->quoted_name(), "'posix.system'");

  const std::string command = text("echo executed > gpipe_pickle_was_executed");
  for (const auto& [bytes, name] :
       std::vector<std::pair<std::string, std::string>>{
           {"\x80\x02" + global("os", "system") + command + "\x85R.",
            "'os.system'"},
           {"\x80\x04" + text("os") + text("system") + "\x93" + command +
                "\x85R.",
            "'os.system'"},
           {global("builtins", "eval") + command + "\x85\x81.",
            "'builtins.eval'"},
           {global("builtins", "eval") + command + "\x85}\x92.",
            "'builtins.eval'"},
           {global("functools", "partial") + command + "\x85R" + ")R.",
            "'functools.partial'"},
           {global("torch", "FloatStorage.__reduce__") + command + "\x85R.",
            "'torch.FloatStorage.__reduce__'"}}) {
    const Pickle pickle(bytes);
    EXPECT_EQ(pickle.value().kind, Kind::kObject);
    EXPECT_EQ(pickle.value().quoted_name(), name);
  }
  // INST, OBJ, EXT1 and PERSID are other opcodes that make calls.
  for (const char opcode : {'i', 'o', '\x82', 'P'}) {
    const std::string bytes = "\x80\x02("s + command + opcode + "os\nsystem\n.";
    EXPECT_NE(error_in(bytes).find("which torch.save does not use for a state "
                                   "dict; nothing was executed"),
              std::string::npos);
  }
  EXPECT_NE(access("gpipe_pickle_was_executed", F_OK), 0);
}

// Items and attributes of an unknown object are not kept.
TEST(PickleTest, ReadsAroundObjects) {
  const std::string object = global("nets", "Net") + ")\x81";
  for (const std::string change : {"}b", "K\x01K\x02s", "(K\x01K\x02u",
                                   "K\x01"
                                   "a",
                                   "(K\x01K\x02"
                                   "e",
                                   "(K\x01\x90"}) {
    const std::string bytes = object + change + "K\x07\x86.";
    const Pickle pickle(bytes);
    ASSERT_EQ(pickle.value().items.size(), 2u);
    EXPECT_EQ(pickle.value().items[0]->quoted_name(), "'nets.Net'");
    EXPECT_EQ(pickle.value().items[1]->integer, 7);
  }
}

// The values in make_fixtures.py.
TEST(PickleTest, ReadsWhatTrainingProgramsSaveBesideWeights) {
  for (const char* name : {"checkpoint2", "checkpoint4"}) {
    const std::string bytes = pickle_of_python(name);
    const Pickle pickle(bytes);
    std::map<std::string_view, std::string> kinds;
    const auto& items = pickle.value().items;
    for (std::size_t k = 0; k < items.size(); k += 2) {
      kinds[items[k]->text] = items[k + 1]->kind == Kind::kObject
                                  ? items[k + 1]->quoted_name()
                                  : items[k + 1]->kind_name();
    }
    for (const auto& [name, kind] :
         std::vector<std::pair<std::string_view, std::string>>{
             {"rng_state", "a tensor"},
             {"seed", "a large int"},
             {"negative", "a large int"},
             {"longest", "a large int"},
             {"generator", "a dict"},
             {"counts", "'collections.Counter'"},
             {"device", "'torch.device'"},
             {"dtype", "a dtype"},
             {"small_dtype", "a name"},
             {"size", "a tuple"},
             {"sparse", "'torch._utils._rebuild_sparse_tensor'"},
             {"csr", "'torch._utils._rebuild_sparse_tensor'"},
             {"quantized", "'torch._utils._rebuild_qtensor'"},
             {"conjugated", "'torch._utils.set_tensor_metadata'"},
             {"meta", "'torch._utils._rebuild_meta_tensor_no_storage'"},
             {"named", "a tensor"},
             {"none", "None"},
             {"model", "a dict"}}) {
      EXPECT_EQ(kinds[name], kind) << name;
    }
  }
}

TEST(PickleTest, WhatMayBeNamedMayNotBeUsedForOtherThings) {
  const std::string dict = global("collections", "OrderedDict");
  EXPECT_EQ(error_in(dict + "K\x01\x85R."),
            "pickle, byte 28: an OrderedDict made of 1 arguments");
  EXPECT_EQ(error_in("K\x01)R."), "pickle, byte 3: what is called is an int");
  EXPECT_EQ(error_in(dict + "K\x01R."),
            "pickle, byte 27: what a function is called with is an int");
  EXPECT_EQ(error_in(global("torch", "FloatStorage") + ")R."),
            "pickle, byte 21: what is called is a storage class");
  EXPECT_EQ(error_in(dict + ")}b."),
            "pickle, byte 27: sets attributes of a tuple");
  EXPECT_EQ(error_in(text("file") + "Q."),
            "pickle, byte 9: a persistent id that does not name a storage");
  EXPECT_EQ(error_in(global("torch._utils", "_rebuild_tensor_v2") + ")R."),
            "pickle, byte 34: a tensor of 0 arguments");
}

TEST(PickleTest, NoLengthIsBelieved) {
  EXPECT_EQ(error_in(""),
            "pickle, byte 0: wants 1 bytes more, but there are 0");
  EXPECT_EQ(error_in("\x80"),
            "pickle, byte 0: wants 1 bytes more, but there are 0");
  const std::string huge(8, '\xff');
  for (const std::string& opcode : {"X"s, "B"s, "T"s}) {
    EXPECT_EQ(error_in(opcode + huge + "ab"),
              "pickle, byte 0: wants 4294967295 bytes more, but there are 6");
  }
  for (const std::string& opcode : {"\x8d"s, "\x8e"s, "\x96"s}) {
    EXPECT_EQ(error_in(opcode + huge + "ab"),
              "pickle, byte 0: wants 18446744073709551615 bytes more, but "
              "there are 2");
  }
  EXPECT_EQ(error_in("\x8a\xff" + huge),
            "pickle, byte 0: wants 255 bytes more, but there are 8");
  EXPECT_EQ(error_in("\x8b" + huge),
            "pickle, byte 0: wants 4294967295 bytes more, but there are 4");
  EXPECT_EQ(error_in("Nr\xff\xff\xff\x7f."),
            "pickle, byte 1: memo 2147483647 in a pickle of 7 bytes");
  EXPECT_EQ(error_in("h\x05."), "pickle, byte 0: memo 5 has not been set");
  EXPECT_EQ(error_in("cos"), "pickle, byte 0: a name without an end");
  EXPECT_EQ(error_in("\x80\x06N."),
            "pickle, byte 0: protocol 6; 2 to 5 are read");
}

TEST(PickleTest, TheStackHasABottom) {
  for (const std::string bytes : {".", "0.", "2.", "\x85.", "q\x01.", "R.",
                                  "a.", "s.", "b.", "Q.", "(.", "((0."}) {
    EXPECT_NE(error_in(bytes).find("takes from an empty stack"),
              std::string::npos)
        << bytes;
  }
  for (const std::string bytes : {"t.", "l.", "d.", "1.", "e.", "u.", "Nt."}) {
    EXPECT_NE(error_in(bytes).find("no mark on the stack"), std::string::npos)
        << bytes;
  }
  EXPECT_EQ(error_in("(e."), "pickle, byte 1: takes from an empty stack");
  EXPECT_EQ(error_in("](0."), "pickle, byte 2: takes from an empty stack");
  EXPECT_EQ(error_in("N(e."), "pickle, byte 2: adds items to None");
  EXPECT_EQ(error_in("](u."), "pickle, byte 2: adds items to a list");
  EXPECT_EQ(error_in("}(Nu."), "pickle, byte 3: a dict's key without a value");
  EXPECT_EQ(error_in("(Nd."), "pickle, byte 2: a dict's key without a value");
  EXPECT_EQ(error_in(std::string(1001, '(')),
            "pickle, byte 1000: nested deeper than 1000");
}

TEST(PickleTest, CirclesAndDeepNestingAreHarmless) {
  const Pickle circle("]q\0h\0a."s);
  EXPECT_EQ(circle.value().items[0], &circle.value());

  constexpr std::size_t kDepth = 300000;
  const std::string bytes = ")" + std::string(kDepth, '\x85') + ".";
  const Pickle deep(bytes);
  EXPECT_EQ(deep.value().items.size(), 1u);
}

// Repeats the byte sequences that allocate the most, a hundred thousand times
// each.
TEST(PickleTest, MemoryIsBoundedByTheSize) {
  for (const std::string& step :
       {")"s, "N"s, "]"s, "2"s, "\x94"s, "\x85"s, "a"s, "]2"s, ")]"s, ")\x94"s,
        "N2\x86"s, "]a"s, "\x8f"s, "c\n\n"s, "c\n\n)R"s}) {
    std::string bytes = "]]";
    while (bytes.size() < 200000) bytes += step;
    const auto size = static_cast<int64_t>(bytes.size());
    const testing::AllocationMeter meter;
    try {
      Pickle pickle(bytes);
    } catch (const c10::ValueError&) {  // no STOP
    }
    EXPECT_LE(meter.peak(), 160 * size + (1 << 16)) << step;
    EXPECT_LE(meter.largest(), 16 * size + (1 << 13)) << step;
  }
}

}  // namespace
}  // namespace gpipe::internal
