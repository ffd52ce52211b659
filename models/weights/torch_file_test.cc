#include "models/weights/torch_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <string>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/pickle.h"

namespace gpipe {
namespace {

using testing::corpus_file;
using testing::error_of;
using ::testing::HasSubstr;
using testing::new_folder;
using testing::read_bytes;
using testing::value_error_of;
using testing::write_bytes;

TEST(TorchFileTest, ReadsWhatPythonHasWritten) {
  const StateDict dict = read_torch_file(corpus_file("torch_file.nested"));
  EXPECT_EQ(dict.keys(), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(dict["weight"].sizes(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(dict["weight"][0][0].item<float>(), 1.5f);
  EXPECT_EQ(dict["weight"][0][1].item<float>(), -2.0f);
  EXPECT_EQ(dict["bias"][0].item<float>(), 0.25f);
}

TEST(TorchFileTest, WritesWhatItReadsBitByBit) {
  const std::string folder = new_folder();
  const StateDict dict =
      testing::every_kind_of_tensor(/*for_safetensors=*/false);
  write_torch_file(folder + "all.pt", dict);
  EXPECT_EQ(testing::names_in(folder), std::vector<std::string>{"all.pt"});
  const StateDict read = read_torch_file(folder + "all.pt");
  EXPECT_EQ(read.keys(), dict.keys());
  for (const auto& item : dict) {
    EXPECT_TRUE(testing::bit_equal(read[item.key()], item.value()))
        << item.key();
    EXPECT_EQ(read[item.key()].strides(), item.value().strides());
  }
  // Tensors that were views are views again.
  EXPECT_TRUE(read["part"].is_alias_of(read["base"]));
  EXPECT_EQ(read["part"].storage_offset(), 4);
  EXPECT_FALSE(read["nan"].is_alias_of(read["base"]));
  read["base"][4].fill_(100);
  EXPECT_EQ(read["part"][0][0].item<float>(), 100);
}

// The values of a mapped file are no part of what is read before they are used.
TEST(TorchFileTest, AMappedFileIsReadWhereItIsUsed) {
  const std::string folder = new_folder();
  StateDict dict = testing::every_kind_of_tensor(/*for_safetensors=*/false);
  dict.insert("large", at::full({1 << 20}, 2.5f));
  write_torch_file(folder + "all.pt", dict);
  StateDict mapped;
  const int64_t read = testing::bytes_read_by(
      [&] { mapped = internal::map_torch_file(folder + "all.pt"); });
  EXPECT_LT(read, 1 << 17);
  for (const auto& item : dict) {
    EXPECT_TRUE(testing::bit_equal(mapped[item.key()], item.value()))
        << item.key();
    EXPECT_EQ(mapped[item.key()].strides(), item.value().strides());
  }
  EXPECT_TRUE(mapped["part"].is_alias_of(mapped["base"]));
}

TEST(TorchFileTest, WritesTheRecordsOfTorchSave) {
  const std::string path = new_folder() + "w.pt";
  StateDict dict;
  dict.insert("w", at::full({3}, 1.0));
  write_torch_file(path, dict);
  caffe2::serialize::PyTorchStreamReader reader(path);
  std::vector<std::string> names = reader.getAllRecords();
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "data.pkl", ".format_version", ".storage_alignment",
                "byteorder", "data/0", "version", ".data/serialization_id"}));
  EXPECT_EQ(reader.getRecordOffset("data/0") % 64, 0u);
  EXPECT_EQ(reader.getRecordSize("data/0"), 12u);
}

TEST(TorchFileTest, AnEmptyDictIsWrittenAndHasNothingToRead) {
  const std::string path = new_folder() + "empty.pt";
  write_torch_file(path, StateDict());
  EXPECT_EQ(value_error_of([&] { read_torch_file(path); }),
            path +
                ": holds no dict of tensors, as "
                "torch.save(model.state_dict(), path) writes it; what "
                "there is: nothing");
}

// PyTorch takes the number of bytes of a storage to be a multiple of its dtype.
TEST(TorchFileTest, WritesViewsOfMemoryOfAnotherDtype) {
  const std::string path = new_folder() + "w.pt";
  StateDict dict;
  const at::Tensor bytes = at::arange(10, at::kByte);
  dict.insert("a", bytes.slice(0, 0, 8).view(at::kFloat));
  const at::Tensor none = at::empty({0}, at::kFloat);
  dict.insert("b", none);
  dict.insert("c", none.view(at::kInt));
  write_torch_file(path, dict);
  const StateDict read = read_torch_file(path);
  EXPECT_TRUE(at::equal(read["a"].view(at::kByte), bytes.slice(0, 0, 8)));
  EXPECT_EQ(read["b"].scalar_type(), at::kFloat);
  EXPECT_EQ(read["c"].scalar_type(), at::kInt);
}

TEST(TorchFileTest, NamesTensorsThatCannotBeWritten) {
  const std::string folder = new_folder();
  const auto error = [&](const at::Tensor& tensor) {
    StateDict dict;
    dict.insert("good", at::full({3}, 1.0));
    dict.insert("bad", tensor);
    return value_error_of([&] { write_torch_file(folder + "w.pt", dict); });
  };
  EXPECT_EQ(error(at::Tensor()), "'bad' is undefined");
  EXPECT_EQ(error(at::empty({2}, at::TensorOptions(at::kMeta))),
            "'bad' is on the meta device, and so has no values");
  EXPECT_EQ(error(at::full({3}, 1.0).to_sparse()),
            "'bad' is a SparseCPUFloatType; only plain tensors can be written");
  EXPECT_EQ(error(at::_efficientzerotensor({3}, at::kFloat)),
            "'bad' is a CPUFloatType; only plain tensors can be written");
  StateDict bytes;
  bytes.insert("\xff", at::full({3}, 1.0));
  EXPECT_EQ(value_error_of([&] { write_torch_file(folder + "w.pt", bytes); }),
            "'\xff' is not UTF-8, which a pickle requires");
  const at::Tensor base = at::full({3}, 1.0);
  StateDict dict;
  dict.insert("a", base);
  dict.insert("b", base.view(at::kInt));
  EXPECT_EQ(value_error_of([&] { write_torch_file(folder + "w.pt", dict); }),
            "'a' and 'b' share memory, but the one is Float and the other Int, "
            "which PyTorch's files cannot express; clone() one");
  EXPECT_TRUE(testing::names_in(folder).empty());
}

// A full disk must give an error, must not end the process, and leaves no file.
TEST(TorchFileTest, AFullDiskIsAnError) {
  const std::string folder = new_folder();
  const std::string path = folder + "w.pt";
  StateDict dict;
  for (int k = 0; k < 4; ++k) {
    dict.insert(std::to_string(k), at::full({10000}, 1.0));
  }
  for (const int limit : {0, 100, 1000, 50000, 159000, 161500}) {
    testing::with_file_limit(limit, [&] {
      EXPECT_EQ(error_of([&] { write_torch_file(path, dict); }),
                path + ": cannot be written: File too large")
          << limit;
    });
  }
  EXPECT_TRUE(testing::names_in(folder).empty());
  write_torch_file(path, dict);
  EXPECT_EQ(read_torch_file(path).size(), 4u);
}

// Returns an archive with these records.
std::string archive(
    const std::vector<std::pair<std::string, std::string>>& records,
    bool compress = false) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer(
      [&bytes](const void* from, std::size_t size) {
        bytes.append(static_cast<const char*>(from), size);
        return size;
      });
  for (const auto& [name, value] : records) {
    writer.writeRecord(name, value.data(), value.size(), compress);
  }
  writer.writeEndOfFile();
  return bytes;
}

TEST(TorchFileTest, ReadsTheNamedEntry) {
  const std::string one =
      internal::pickle_tensors({{"w", "0", 8, at::kFloat, 0, {2}, {1}}});
  const std::string dict = one.substr(2, one.size() - 3);
  const std::string path = new_folder() + "two.pt";
  write_bytes(path, archive({{"data.pkl",
                              "}\x8c\x01"
                              "a" +
                                  dict +
                                  "s\x8c\x01"
                                  "b}\x8c\x01"
                                  "c" +
                                  dict + "ss."},
                             {"data/0", "12345678"}}));
  EXPECT_EQ(read_torch_file(path)["w"].numel(), 2);  // the only one at the top
  EXPECT_EQ(read_torch_file(path, "b/c")["w"].numel(), 2);
  EXPECT_EQ(value_error_of([&] { read_torch_file(path, "d"); }),
            path +
                ": has no entry 'd'; what there is: 'a' (a dict), 'b' (a "
                "dict). Name the entry to read: 'a' (1 tensors), 'b/c' (1 "
                "tensors)");
}

TEST(TorchFileTest, SaysWhatIsWrongWithAFile) {
  const std::string path = new_folder() + "w.pt";
  const auto error = [&](std::string_view bytes) {
    write_bytes(path, bytes);
    const std::string text = value_error_of([&] { read_torch_file(path); });
    EXPECT_EQ(text.rfind(path + ": ", 0), 0u) << text;
    return text.substr(std::min(text.size(), path.size() + 2));
  };
  const std::string pickle =
      internal::pickle_tensors({{"w", "0", 8, at::kFloat, 0, {2}, {1}}});
  const std::string data = "12345678";

  const std::string legacy = read_bytes(corpus_file("torch_file.legacy"));
  // The same with protocol 4.
  const std::string framed =
      std::string("\x80\x04\x95\x0d\0\0\0\0\0\0\0", 11) + legacy.substr(2);
  for (const std::string& old : {legacy, framed}) {
    EXPECT_EQ(error(old),
              "is of the format before PyTorch 1.6. Save it again with a "
              "recent one: torch.save(torch.load(path, weights_only=True), "
              "path)");
  }
  EXPECT_EQ(
      error("no archive"),
      "is not a zip archive: it is damaged, or torch.save did not write it");
  EXPECT_EQ(
      error(""),
      "is not a zip archive: it is damaged, or torch.save did not write it");
  EXPECT_EQ(error(archive({{"other", "text"}})),
            "is a zip archive, but not from torch.save: it has no data.pkl");
  EXPECT_EQ(error(archive({{"data.pkl", pickle}, {"byteorder", "big"}})),
            "has byte order 'big'; only 'little' is read");
  EXPECT_EQ(error(archive({{"data.pkl", pickle}})), "has no record 'data/0'");
  EXPECT_EQ(error(archive({{"data.pkl", pickle}, {"data/0", "1234"}})),
            "storage '0' has 4 bytes, but should have 8");
  EXPECT_EQ(error(archive({{"data.pkl", "cos\nsystem\n)R."}})),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: 'os.system'");
  EXPECT_THAT(error(archive({{"data.pkl", pickle}, {"constants.pkl", ")."}})),
              HasSubstr("TorchScript"));
  // What C++ writes.
  const std::string module = new_folder() + "module.pt";
  torch::save(torch::nn::Linear(2, 1), module);
  const std::string saved = value_error_of([&] { read_torch_file(module); });
  EXPECT_THAT(
      saved, HasSubstr("is an archive of TorchScript, as torch.jit.save writes "
                       "in Python and torch::save in C++"));
  EXPECT_THAT(saved, HasSubstr("torch::load(module, path), then "
                               "gpipe::write_torch_file(path, "
                               "gpipe::state_dict(*module))"));
  const std::string zeros(1 << 20, '\0');
  EXPECT_THAT(error(archive({{"data.pkl", pickle}, {"data/0", zeros}}, true)),
              HasSubstr("has a record 'data/0' of 1048576 bytes, but is a file "
                        "of "));

  // The archive is cut off at various sizes.
  const std::string whole = archive({{"data.pkl", pickle}, {"data/0", data}});
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    EXPECT_NE(error(whole.substr(0, size)), "") << size;
  }
  write_bytes(path, whole);
  EXPECT_EQ(read_torch_file(path)["w"].numel(), 2);

  // A small compressed archive is read, also where others are mapped.
  write_bytes(path, archive({{"data.pkl", pickle},
                             {"data/0", std::string("\0\0\x80?\0\0\0@", 8)}},
                            /*compress=*/true));
  for (const auto& dict :
       {read_torch_file(path), internal::map_torch_file(path)}) {
    EXPECT_EQ(dict["w"][0].item<float>(), 1);
    EXPECT_EQ(dict["w"][1].item<float>(), 2);
  }

  EXPECT_EQ(value_error_of([] { read_torch_file("/missing.pt"); }),
            "/missing.pt: is not a regular file, or cannot be read");
  EXPECT_EQ(value_error_of([] { read_torch_file("/"); }),
            "/: is not a regular file, or cannot be read");
}

}  // namespace
}  // namespace gpipe
