#include "models/weights/pickled_weights.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/pickle.h"

namespace gpipe::internal {

namespace {

using namespace std::string_literals;  // "..."s literals may contain \0
using testing::pickle_of_python;
using testing::value_error_of;

std::string short_text(const std::string& text) {
  return "\x8c" + std::string(1, static_cast<char>(text.size())) + text;
}

// Returns the pickle of a dict, without STOP. Each value is a pickle as well.
std::string dict(
    const std::vector<std::pair<std::string, std::string>>& items) {
  std::string bytes = "}";
  for (const auto& [key, value] : items) {
    bytes += short_text(key) + value + "s";
  }
  return bytes;
}

// Returns the pickle of a dict of tensors with these names. Each tensor has two
// elements.
std::string dict_of_tensors(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> items;
  for (const std::string& name : names) {
    items.emplace_back(name, "ctorch._utils\n_rebuild_tensor_v2\n((" +
                                 short_text("storage") +
                                 "ctorch\nFloatStorage\n" + short_text("0") +
                                 short_text("cpu") +
                                 "K\x02tQK\0K\x02\x85K\x01\x85\x89N"s + "tR");
  }
  return dict(items);
}

// Returns the name of the first tensor of the dict that is found, or the text
// of the error.
std::string found(const std::string& bytes, std::string_view entry = {}) {
  std::string name;
  const std::string error = value_error_of([&] {
    const std::string whole = bytes + ".";
    const Pickle pickle(whole);
    const PickleValue& weights = weights_in(pickle.value(), entry);
    for (std::size_t k = 0; k < weights.items.size() && name.empty(); k += 2) {
      if (weights.items[k + 1]->kind == PickleValue::Kind::kTensor) {
        name = weights.items[k]->text;
      }
    }
  });
  return name.empty() ? error : name;
}

// Returns a dict with a tensor of this name, beside a tensor in its parent.
std::string beside_tensor(const std::string& entry, const std::string& name) {
  const std::string rest = dict_of_tensors({"rng_state"});
  return rest + short_text(entry) + dict_of_tensors({name}) + "s";
}

TEST(PickledWeightsTest, ATensorBesideTheWeightsDoesNotHideThem) {
  for (const char* entry :
       {"state_dict", "model_state_dict", "model", "module", "net"}) {
    EXPECT_EQ(found(beside_tensor(entry, "w")), "w") << entry;
  }
}

TEST(PickledWeightsTest, KnownEntriesComeFirstAlsoInOneAnother) {
  const std::string w = dict_of_tensors({"w"}), v = dict_of_tensors({"v.x"});
  EXPECT_EQ(found(dict({{"a.b", "N"}, {"ema", v}, {"model", w}})), "w");
  EXPECT_EQ(found(dict({{"model", v}, {"state_dict", w}})), "w");
  EXPECT_EQ(found(dict({{"model", dict({{"module", w}})}, {"ema", v}})), "w");
  EXPECT_EQ(found(dict({{"model", "]"}, {"module", dict({})}, {"net", w}})),
            "w");
  EXPECT_EQ(
      found(dict_of_tensors({"fc.weight"}) + short_text("model") + w + "s"),
      "w");
}

TEST(PickledWeightsTest, NamesOfParametersSayThatADictIsAStateDict) {
  for (const char* name : {"fc.mask", "weight", "bias"}) {
    EXPECT_EQ(found(dict_of_tensors({name}) + short_text("extra") +
                    dict_of_tensors({"x"}) + "s"),
              name);
  }
  EXPECT_EQ(found(dict_of_tensors({"w", "v"})), "w");
  EXPECT_EQ(found(dict_of_tensors({"w"}) + short_text("extra") + "}s"), "w");
  // Keys that are not texts.
  EXPECT_EQ(found("}K\x01" + dict_of_tensors({"x"}) + "s" + short_text("net") +
                  dict_of_tensors({"w"}) + "s"),
            "holds several dicts of tensors. Name the entry to read: '1' (1 "
            "tensors), 'net' (1 tensors)");
}

TEST(PickledWeightsTest, AnEntryCanBeNamed) {
  const std::string g = dict_of_tensors({"g"}), d = dict_of_tensors({"d"});
  const std::string two = dict({{"G", g}, {"D", d}, {"epoch", "K\x03"}});
  EXPECT_EQ(found(two),
            "holds several dicts of tensors. Name the entry to read: 'G' (1 "
            "tensors), 'D' (1 tensors)");
  EXPECT_EQ(found(two, "D"), "d");
  EXPECT_EQ(found(two, "E"),
            "has no entry 'E'; what there is: 'G' (a dict), 'D' (a dict), "
            "'epoch' (an int). Name the entry to read: 'G' (1 tensors), 'D' (1 "
            "tensors)");
  EXPECT_EQ(found(two, "epoch").substr(0, 82),
            "entry 'epoch' holds no dict of tensors, as "
            "torch.save(model.state_dict(), path) wr");
  const std::string nested =
      dict({{"state", dict({{"nets", "(" + g + d + "l"}, {"a/b", g}})}});
  EXPECT_EQ(found(nested, "state/nets/1"), "d");
  EXPECT_EQ(found(nested, "state/a/b"), "g");
  EXPECT_EQ(found(nested, "state/nets/2").substr(0, 22),
            "has no entry 'state/ne");
  EXPECT_EQ(found(nested),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: 'state' (a dict). Name the entry to "
            "read: 'state/a/b' (1 tensors), 'state/nets/0' (1 tensors), "
            "'state/nets/1' (1 tensors)");
  EXPECT_EQ(found("(" + g + d + "t"),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: a tuple. Name the entry to read: '0' (1 "
            "tensors), '1' (1 tensors)");
  EXPECT_EQ(found("(" + g + d + "t", "1"), "d");
  EXPECT_EQ(found("}K\x07" + g + "s", "7"), "g");
  // The rules hold in the named entry, too, and "." is the whole.
  EXPECT_EQ(found(dict({{"x", dict({{"model", g}, {"n", "N"}})}}), "x"), "g");
  EXPECT_EQ(found(beside_tensor("model", "w"), "."), "rng_state");
  EXPECT_EQ(found(dict({{"model", g}}), "."), "g");
}

TEST(PickledWeightsTest, SaysWhatThereIs) {
  EXPECT_EQ(found(dict({{"model", "cnets\nNet\n)R"}, {"epoch", "K\x03"}})),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: 'model' ('nets.Net'), 'epoch' (an int)");
  EXPECT_EQ(found("cnets\nNet\n)R"),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: 'nets.Net'");
  EXPECT_EQ(found("}"),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: nothing");
}

TEST(PickledWeightsTest, CirclesAndMassesTakeLittleTime) {
  // Every known entry is the dict itself.
  std::string circle = "}q\0"s;
  for (const char* name :
       {"state_dict", "model_state_dict", "model", "module", "other"}) {
    circle += short_text(name) + "h\0s"s;
  }
  EXPECT_EQ(found(circle).substr(0, 24), "holds no dict of tensors");
  // One dict of 50,000 items, held 50,000 times; and many lists.
  std::string inner = "}q\x01(", outer = "}(";
  for (int k = 0; k < 50000; ++k) {
    inner += "NN";
    outer += "]h\x01";
  }
  EXPECT_EQ(found(dict({{"a", inner + "u"},
                        {"b", outer + "u"},
                        {"c", "(" + std::string(50000, ']') + "l"}}))
                .substr(0, 24),
            "holds no dict of tensors");
}

// A reader of storages with bytes 0, 1, 2, ... that records the requested keys.
struct Counting {
  std::vector<std::string> keys;

  StateDict tensors(std::string_view bytes) {
    const Pickle pickle(bytes);
    return tensors_of(
        pickle.value(), [this](const std::string& key, int64_t size) {
          keys.push_back(key);
          c10::Storage storage(c10::Storage::use_byte_size_t(), size,
                               c10::GetCPUAllocator(), /*resizable=*/false);
          for (int64_t k = 0; k < size; ++k) {
            static_cast<uint8_t*>(storage.mutable_data())[k] =
                static_cast<uint8_t>(k % 2);
          }
          return storage;
        });
  }
};

StateDict tensors(const std::vector<PickledTensor>& tensors) {
  Counting counting;
  return counting.tensors(pickle_tensors(tensors));
}

// Returns the names of the tensors in a pickle.
std::vector<std::string> keys_of(const std::string& bytes) {
  Counting counting;
  return counting.tensors(bytes).keys();
}

TEST(PickledTensorsTest, HaveStridesAndShareStorages) {
  Counting counting;
  const StateDict dict = counting.tensors(pickle_of_python("strided"));
  EXPECT_EQ(dict.size(), 10u);
  // "transposed" and "row" share one storage.
  EXPECT_EQ(counting.keys, (std::vector<std::string>{"0", "1", "2", "3", "4",
                                                     "5", "6", "7", "8"}));
  EXPECT_EQ(dict["transposed"].sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(dict["transposed"].strides(), at::IntArrayRef({1, 3}));
  EXPECT_EQ(dict["row"].storage_offset(), 3);
  EXPECT_TRUE(dict["row"].is_alias_of(dict["transposed"]));
  EXPECT_EQ(dict["float8"].scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(dict["int64"].dim(), 0);
  EXPECT_EQ(dict["int64"].item<int64_t>(), 0x0100010001000100);
  EXPECT_EQ(dict["empty"].sizes(), at::IntArrayRef({0, 3}));
  EXPECT_FALSE(dict["parameter"].requires_grad());
}

// Returns a tensor "t" in a storage of 24 bytes.
PickledTensor in_24_bytes(int64_t offset, std::vector<int64_t> sizes,
                          std::vector<int64_t> strides,
                          c10::ScalarType dtype = at::kFloat) {
  return {"t", "0", 24, dtype, offset, std::move(sizes), std::move(strides)};
}

TEST(PickledTensorsTest, MayFillTheirStorage) {
  EXPECT_EQ(tensors({in_24_bytes(5, {1}, {1})})["t"].numel(), 1);
  EXPECT_EQ(tensors({in_24_bytes(0, {2, 2}, {3, 2})})["t"].sizes(),
            at::IntArrayRef({2, 2}));
  EXPECT_EQ(tensors({in_24_bytes(6, {0}, {1})})["t"].numel(), 0);
  EXPECT_EQ(tensors({in_24_bytes(0, {1000000}, {0})})["t"].numel(), 1000000);
}

TEST(PickledTensorsTest, DoNotReachBeyondTheirStorage) {
  constexpr int64_t kHuge = INT64_MAX;
  const std::vector<PickledTensor> wrong = {
      in_24_bytes(0, {7}, {1}),
      in_24_bytes(1, {6}, {1}),
      in_24_bytes(6, {}, {}),
      in_24_bytes(7, {0}, {1}),
      in_24_bytes(0, {2, 2}, {4, 2}),
      in_24_bytes(kHuge, {1}, {1}),
      in_24_bytes(0, {2}, {kHuge}),
      in_24_bytes(3, {3}, {kHuge}),
      in_24_bytes(0, {2, 2}, {kHuge, kHuge}),
      in_24_bytes(0, {kHuge}, {0}),
      in_24_bytes(0, {int64_t{1} << 32, int64_t{1} << 32}, {0, 0}),
      in_24_bytes(0, {0, kHuge, kHuge}, {1, 1, 1}),
      in_24_bytes(0, {25}, {1}, at::kFloat8_e5m2),
  };
  for (const PickledTensor& each : wrong) {
    EXPECT_NE(value_error_of([&] { tensors({each}); }).find("'t' has sizes "),
              std::string::npos)
        << each.offset << " " << c10::IntArrayRef(each.sizes);
  }
  EXPECT_EQ(value_error_of([&] { tensors({wrong[0]}); }),
            "'t' has sizes [7], strides [1] and offset 0, which is beyond its "
            "storage of 6 elements");
}

TEST(PickledTensorsTest, AStorageHasOneSize) {
  EXPECT_EQ(value_error_of([] {
              tensors({{"a", "0", 24, at::kFloat, 0, {1}, {1}},
                       {"b", "0", 28, at::kFloat, 0, {1}, {1}}});
            }),
            "storage '0' has 24 bytes, but should have 28");
}

TEST(PickledTensorsTest, AreReadBesideAnythingElse) {
  for (const char* name : {"checkpoint2", "checkpoint4"}) {
    Counting counting;
    EXPECT_EQ(counting.tensors(pickle_of_python(name)).keys(),
              std::vector<std::string>{"w"});
    EXPECT_EQ(counting.keys.size(), 1u);  // no other storage is read
  }
}

// Returns the pickle of {"w": tensor, "x": value}.
std::string with_value(const std::string& value) {
  const std::string one =
      pickle_tensors({{"w", "0", 4, at::kFloat, 0, {1}, {1}}});
  return one.substr(0, one.size() - 1) + "\x8c\x01x" + value + "s.";
}

TEST(PickledTensorsTest, ItemsThatAreNotTensorsAreLeftOut) {
  for (const std::string value :
       {"N", "K\x01", "]", "}", "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        "cbuiltins\nset\n)R", "c__builtin__\ncomplex\n)R", "\x8f",
        "ccollections\nCounter\n)R", "ctorch\ndevice\n)R", "ctorch\nSize\n)R",
        "ctorch\nuint4\n", "cnet\nNet\n"}) {
    EXPECT_EQ(keys_of(with_value(value)), std::vector<std::string>{"w"})
        << value;
  }
}

TEST(PickledTensorsTest, ANameThatIsNoTextIsNoWeight) {
  const std::string one =
      pickle_tensors({{"w", "0", 4, at::kFloat, 0, {1}, {1}}});
  // The tensor of the dict, once more with the name 7, and an object.
  const std::size_t begin = one.find("ctorch._utils");
  const std::string tensor = one.substr(begin, one.rfind("u.") - begin);
  EXPECT_EQ(keys_of(one.substr(0, one.size() - 1) + "K\x07" + tensor +
                    "sK\x08"
                    "cnet\nNet\n)Rs."),
            std::vector<std::string>{"w"});
}

// Python's state_dict() has what Module.get_extra_state() returns.
TEST(PickledTensorsTest, AnExtraStateMayBeAnyObject) {
  const std::string one =
      pickle_tensors({{"w", "0", 4, at::kFloat, 0, {1}, {1}}});
  EXPECT_EQ(keys_of(one.substr(0, one.size() - 1) + "\x8c\x0f"
                                                    "fc._extra_state"
                                                    "c_io\nBytesIO\n)Rs."),
            std::vector<std::string>{"w"});
}

TEST(PickledTensorsTest, ObjectsAmongTheWeightsAreErrorsAndNotExecuted) {
  const auto error = [](const std::string& bytes) {
    return value_error_of([&] { keys_of(bytes); });
  };
  const std::string evil = error(pickle_of_python("evil"));
  EXPECT_EQ(evil,
            "'x' asks for 'posix.system', which is not part of a state dict of "
            "plain tensors. Nothing was executed. If you trust the file, load "
            "it in Python and save the tensors alone: "
            "torch.save(model.state_dict(), path)");
  EXPECT_NE(access("gpipe_pickle_was_executed", F_OK), 0);
  EXPECT_NE(error(with_value("ctorch._utils\n_rebuild_sparse_tensor\n)R"))
                .find("'x' asks for 'torch._utils._rebuild_sparse_tensor'"),
            std::string::npos);
  EXPECT_NE(error(with_value("ctorch._utils\n_rebuild_sparse_tensor\n)R"))
                .find("A tensor becomes a plain one by to_dense()"),
            std::string::npos);
}

TEST(PickledTensorsTest, NamesAreTextsAndThereOnce) {
  const std::string one =
      pickle_tensors({{"w", "0", 4, at::kFloat, 0, {1}, {1}},
                      {"w", "0", 4, at::kFloat, 0, {1}, {1}}});
  EXPECT_EQ(value_error_of([&] { keys_of(one); }), "'w' appears twice");
}

}  // namespace

}  // namespace gpipe::internal
