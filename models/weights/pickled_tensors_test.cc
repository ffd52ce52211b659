#include "models/weights/pickled_tensors.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights/pickle_writer.h"
#include "models/weights/testing/files.h"
#include "models/weights/testing/fixtures.h"

namespace gpipe::internal {
namespace {

using testing::value_error_of;

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

TEST(PickledTensorsTest, HaveStridesAndShareStorages) {
  Counting counting;
  const StateDict dict = counting.tensors(testing::kStridedPickle);
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

TEST(PickledTensorsTest, MayFillTheirStorage) {
  EXPECT_EQ(tensors({{"t", "0", 24, at::kFloat, 5, {1}, {1}}})["t"].numel(), 1);
  EXPECT_EQ(
      tensors({{"t", "0", 24, at::kFloat, 0, {2, 2}, {3, 2}}})["t"].sizes(),
      at::IntArrayRef({2, 2}));
  EXPECT_EQ(tensors({{"t", "0", 24, at::kFloat, 6, {0}, {1}}})["t"].numel(), 0);
  EXPECT_EQ(
      tensors({{"t", "0", 4, at::kFloat, 0, {1000000}, {0}}})["t"].numel(),
      1000000);
}

TEST(PickledTensorsTest, DoNotReachBeyondTheirStorage) {
  constexpr int64_t kHuge = INT64_MAX;
  const std::vector<PickledTensor> wrong = {
      {"t", "0", 24, at::kFloat, 0, {7}, {1}},
      {"t", "0", 24, at::kFloat, 1, {6}, {1}},
      {"t", "0", 24, at::kFloat, 6, {}, {}},
      {"t", "0", 24, at::kFloat, 7, {0}, {1}},
      {"t", "0", 24, at::kFloat, 0, {2, 2}, {4, 2}},
      {"t", "0", 24, at::kFloat, kHuge, {1}, {1}},
      {"t", "0", 24, at::kFloat, 0, {2}, {kHuge}},
      {"t", "0", 24, at::kFloat, 3, {3}, {kHuge}},
      {"t", "0", 24, at::kFloat, 0, {2, 2}, {kHuge, kHuge}},
      {"t", "0", 24, at::kFloat, 0, {kHuge}, {0}},
      {"t",
       "0",
       24,
       at::kFloat,
       0,
       {int64_t{1} << 32, int64_t{1} << 32},
       {0, 0}},
      {"t", "0", 24, at::kFloat, 0, {0, kHuge, kHuge}, {1, 1, 1}},
      {"t", "0", 24, at::kFloat8_e5m2, 0, {25}, {1}},
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
  for (const std::string_view bytes :
       {testing::kCheckpointPickle2, testing::kCheckpointPickle4}) {
    Counting counting;
    EXPECT_EQ(counting.tensors(bytes).keys(), std::vector<std::string>{"w"});
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
    Counting counting;
    EXPECT_EQ(counting.tensors(with_value(value)).keys(),
              std::vector<std::string>{"w"})
        << value;
  }
}

TEST(PickledTensorsTest, ANameThatIsNoTextIsNoWeight) {
  const std::string one =
      pickle_tensors({{"w", "0", 4, at::kFloat, 0, {1}, {1}}});
  // The tensor of the dict, once more with the name 7, and an object.
  const std::size_t begin = one.find("ctorch._utils");
  const std::string tensor = one.substr(begin, one.rfind("u.") - begin);
  Counting counting;
  EXPECT_EQ(counting
                .tensors(one.substr(0, one.size() - 1) + "K\x07" + tensor +
                         "sK\x08"
                         "cnet\nNet\n)Rs.")
                .keys(),
            std::vector<std::string>{"w"});
}

// Python's state_dict() has what Module.get_extra_state() returns.
TEST(PickledTensorsTest, AnExtraStateMayBeAnyObject) {
  const std::string one =
      pickle_tensors({{"w", "0", 4, at::kFloat, 0, {1}, {1}}});
  Counting counting;
  EXPECT_EQ(counting
                .tensors(one.substr(0, one.size() - 1) + "\x8c\x0f"
                                                         "fc._extra_state"
                                                         "c_io\nBytesIO\n)Rs.")
                .keys(),
            std::vector<std::string>{"w"});
}

TEST(PickledTensorsTest, ObjectsAmongTheWeightsAreErrorsAndNotExecuted) {
  const auto error = [](const std::string& bytes) {
    Counting counting;
    return value_error_of([&] { counting.tensors(bytes); });
  };
  const std::string evil = error(std::string(testing::kEvilPickle));
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
  Counting counting;
  EXPECT_EQ(value_error_of([&] { counting.tensors(one); }),
            "'w' appears twice");
}

}  // namespace
}  // namespace gpipe::internal
