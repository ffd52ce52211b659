#include "models/weights/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/safetensors_file.h"

namespace gpipe {
namespace {

using testing::error_of;
using testing::new_folder;
using testing::value_error_of;

std::string length(uint64_t value) {
  std::string bytes;
  for (int k = 0; k < 8; ++k) bytes += static_cast<char>(value >> (8 * k));
  return bytes;
}

std::string error_in(const std::string& bytes) {
  return value_error_of(
      [&] { parse_safetensors(bytes.data(), bytes.size(), "source"); });
}

TEST(SafetensorsTest, ReadsWhatPythonHasWritten) {
  const Safetensors file =
      read_safetensors(testing::corpus_file("safetensors.python"));
  EXPECT_EQ(file.metadata,
            (SafetensorsMetadata{{"made by", "Pyth\xc3\xb6n \"3\""}}));
  EXPECT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.tensors["weight"].sizes(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(file.tensors["weight"][0][0].item<float>(), 1.5f);
  EXPECT_EQ(file.tensors["weight"][0][1].item<float>(), -2.0f);
  EXPECT_EQ(file.tensors["half"].scalar_type(), at::kHalf);
  EXPECT_EQ(file.tensors["half"][0].item<float>(), 0.5f);
  EXPECT_EQ(file.tensors["flags"].scalar_type(), at::kBool);
  EXPECT_EQ(file.tensors["flags"].sum().item<int64_t>(), 2);
}

TEST(SafetensorsTest, WritesWhatItReadsBitByBit) {
  const std::string folder = new_folder();
  const std::string path = folder + "all.safetensors";
  const StateDict dict =
      testing::every_kind_of_tensor(/*for_safetensors=*/true);
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"", "\n"}};
  write_safetensors(path, dict, metadata);
  EXPECT_EQ(testing::names_in(folder),
            std::vector<std::string>{"all.safetensors"});
  const Safetensors file = read_safetensors(path);
  EXPECT_EQ(file.metadata, metadata);
  EXPECT_EQ(file.tensors.keys(), dict.keys());
  for (const auto& item : dict) {
    EXPECT_TRUE(testing::bit_equal(file.tensors[item.key()], item.value()))
        << item.key();
    EXPECT_TRUE(file.tensors[item.key()].is_contiguous());
  }
  const std::string bytes = testing::read_bytes(path);
  const Safetensors parsed = parse_safetensors(bytes.data(), bytes.size());
  EXPECT_EQ(parsed.tensors.keys(), dict.keys());
}

TEST(SafetensorsTest, EveryTensorIsAlignedToItsElements) {
  const std::string path = new_folder() + "mixed.safetensors";
  StateDict dict;
  dict.insert("flags", at::full({3}, 1, at::TensorOptions(at::kBool)));
  dict.insert("halves", at::full({3}, 1, at::TensorOptions(at::kHalf)));
  dict.insert("floats", at::full({3}, 1.0));
  dict.insert("longs", at::full({3}, 1, at::TensorOptions(at::kLong)));
  write_safetensors(path, dict);
  const std::string bytes = testing::read_bytes(path);
  const auto header_bytes =
      static_cast<uint8_t>(bytes[0]) + 256 * static_cast<uint8_t>(bytes[1]);
  EXPECT_EQ(header_bytes % 8, 0);
  const internal::SafetensorsHeader header = internal::parse_safetensors_header(
      bytes.substr(8, header_bytes), 24 + 12 + 6 + 3);
  std::vector<uint64_t> begins;
  for (const auto& entry : header.entries) begins.push_back(entry.begin);
  EXPECT_EQ(begins, (std::vector<uint64_t>{42, 36, 24, 0}));
}

TEST(SafetensorsTest, SaysWhatIsWrongWithAFile) {
  EXPECT_EQ(error_in(""), "source: has 0 bytes, too few for a header");
  EXPECT_EQ(error_in("1234567"), "source: has 7 bytes, too few for a header");
  EXPECT_EQ(error_in(length(3) + "{}"),
            "source: should begin with a header of 3 bytes, but there are 2, "
            "and 100000000 are the most that are allowed");
  for (const uint64_t huge :
       {uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7, uint64_t{1} << 63}) {
    EXPECT_NE(error_in(length(huge) + "{}").find("should begin with a header"),
              std::string::npos);
  }
  EXPECT_EQ(error_in(length(0)), "source: the header does not begin with '{'");
  EXPECT_EQ(error_in(length(2) + "{}"), "no error");
  EXPECT_EQ(error_in(length(2) + "{}x"),
            "source: the header describes 0 bytes of data, but there are 1");
  const std::string whole =
      testing::read_bytes(testing::corpus_file("safetensors.python"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(error_in(whole.substr(0, size)), "no error") << size;
  }
  EXPECT_EQ(value_error_of([] { read_safetensors("/missing"); }),
            "/missing: cannot be read: No such file or directory");
  EXPECT_EQ(value_error_of([] { read_safetensors("/"); }),
            "/: is not a regular file");
}

TEST(SafetensorsTest, NamesTensorsThatCannotBeWritten) {
  const std::string folder = new_folder();
  const auto error = [&](const at::Tensor& tensor) {
    StateDict dict;
    dict.insert("bad", tensor);
    return value_error_of([&] { write_safetensors(folder + "w", dict); });
  };
  EXPECT_EQ(error(at::Tensor()), "'bad' is undefined");
  EXPECT_EQ(error(at::empty({2}, at::TensorOptions(at::kMeta))),
            "'bad' is on the meta device, and so has no values");
  EXPECT_EQ(error(at::full({3}, 1.0).to_sparse()),
            "'bad' is a SparseCPUFloatType; only plain tensors can be written");
  EXPECT_EQ(error(at::full({3}, 1, at::TensorOptions(at::kComplexDouble))),
            "'bad' is ComplexDouble, which safetensors does not support");
  EXPECT_TRUE(testing::names_in(folder).empty());
}

TEST(SafetensorsTest, AFullDiskIsAnError) {
  const std::string folder = new_folder();
  const std::string path = folder + "w";
  StateDict dict;
  dict.insert("a", at::full({10000}, 1.0));
  testing::with_file_limit(20000, [&] {
    EXPECT_EQ(error_of([&] { write_safetensors(path, dict); }),
              path + ": cannot be written: File too large");
  });
  EXPECT_TRUE(testing::names_in(folder).empty());
}

}  // namespace
}  // namespace gpipe
