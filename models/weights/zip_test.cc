#include "models/weights/zip.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "models/testing/files.h"

namespace gpipe::internal {

namespace {

std::string error_of_start(const std::string& start) {
  return testing::value_error_of([&] { check_zip_start(start, "torch.save"); });
}

TEST(ZipStartTest, ReadsTheFirstBytesOrAllOfASmallFile) {
  const std::string path = testing::new_folder() + "file";
  testing::write_bytes(path, std::string("ab\0cd", 5));
  EXPECT_EQ(read_start(path, 4), std::string("ab\0c", 4));
  EXPECT_EQ(read_start(path, 5), std::string("ab\0cd", 5));
  EXPECT_EQ(read_start(path, 16), std::string("ab\0cd", 5));
  testing::write_bytes(path, "");
  EXPECT_EQ(read_start(path, 16), "");
}

TEST(ZipStartTest, AFolderAndAMissingFileAreNoRegularFiles) {
  const std::string folder = testing::new_folder();
  for (const std::string& path : {folder, folder + "missing"}) {
    EXPECT_EQ(testing::value_error_of([&] { (void)read_start(path, 4); }),
              "is not a regular file, or cannot be read");
  }
}

TEST(ZipStartTest, OnlyTheSignatureOfARecordBeginsAnArchive) {
  EXPECT_EQ(error_of_start("PK\x03\x04"), "no error");
  EXPECT_EQ(error_of_start("PK\x03\x04 and records"), "no error");
  const std::string refused =
      "is not a zip archive: it is damaged, or torch.save did not write it";
  EXPECT_EQ(error_of_start(""), refused);
  EXPECT_EQ(error_of_start("PK\x03"), refused);
  // The end of a directory, as in an archive without records.
  EXPECT_EQ(error_of_start("PK\x05\x06"), refused);
  EXPECT_EQ(error_of_start(" PK\x03\x04"), refused);
}

using testing::new_folder;
using testing::value_error_of;
using testing::write_bytes;

std::string bytes_of(uint64_t value, int size) {
  std::string bytes;
  for (int k = 0; k < size; ++k) {
    bytes.push_back(static_cast<char>(value >> (8 * k)));
  }
  return bytes;
}

// Returns the directory entry of a record.
std::string record(const std::string& name, uint64_t size,
                   const std::string& extra = "") {
  return "PK\x01\x02" + std::string(20, '\0') + bytes_of(size, 4) +
         bytes_of(name.size(), 2) + bytes_of(extra.size(), 2) +
         std::string(14, '\0') + name + extra;
}

std::string end(uint64_t records, uint64_t size, uint64_t at) {
  return "PK\x05\x06" + std::string(6, '\0') + bytes_of(records, 2) +
         bytes_of(size, 4) + bytes_of(at, 4) + bytes_of(0, 2);
}

std::string error(const std::string& archive) {
  const std::string path = new_folder() + "zip";
  write_bytes(path, archive);
  return value_error_of([&] { read_zip_directory(path); });
}

const std::string kData(10, 'x');  // stands in for the records

TEST(ZipDirectoryTest, AcceptsRecordsThatFitIntoTheFile) {
  const std::string two = record("folder/a", 4) + record("folder/b", 6);
  EXPECT_EQ(error(kData + two + end(2, two.size(), 10)), "no error");
  EXPECT_EQ(error(end(0, 0, 0)), "no error");
  // The comment contains a signature of an end, but is too short for one.
  EXPECT_EQ(error(end(0, 0, 0) + "PK\x05\x06"), "no error");
}

TEST(ZipDirectoryTest, RefusesALargerRecord) {
  // 10 + 46 + 8 + 22 bytes.
  const auto archive = [](uint64_t size) {
    return kData + record("folder/a", size) + end(1, 54, 10);
  };
  EXPECT_EQ(error(archive(86)), "no error");
  EXPECT_EQ(error(archive(87)),
            "has a record 'a' of 87 bytes, but is a file of 86 bytes; "
            "compressed records are not read");
  // torch_file_fuzz found this: LibTorch allocated 4 GB.
  EXPECT_EQ(error(archive(0xffffffff)).rfind("has a record 'a' of 4294967295"),
            0u);
}

TEST(ZipDirectoryTest, RefusesRecordsThatHaveBytesInCommon) {
  // 10 + 2 * (46 + 1) + 22 bytes.
  const auto archive = [](uint64_t a, uint64_t b) {
    const std::string two = record("a", a) + record("b", b);
    return kData + two + end(2, two.size(), 10);
  };
  EXPECT_EQ(error(archive(100, 26)), "no error");
  EXPECT_EQ(error(archive(100, 27)),
            "has records of 127 bytes up to 'b', but is a file of 126 bytes: "
            "some are compressed, or are the same bytes; neither is read");
}

TEST(ZipDirectoryTest, ReadsSizesOf64Bits) {
  const auto archive = [](uint64_t size, const std::string& before = "") {
    const std::string extra =
        before + bytes_of(1, 2) + bytes_of(8, 2) + bytes_of(size, 8);
    const std::string one = record("a", 0xffffffff, extra);
    return kData + one + end(1, one.size(), 10);
  };
  EXPECT_EQ(error(archive(6)), "no error");
  EXPECT_EQ(error(archive(6, bytes_of(7, 2) + bytes_of(3, 2) + "abc")),
            "no error");
  EXPECT_EQ(error(archive(uint64_t{1} << 62))
                .rfind("has a record 'a' of 4611686018427387904 bytes"),
            0u);
}

TEST(ZipDirectoryTest, ReturnsNamesSizesAndChecksums) {
  std::string two = record("folder/b", 6);
  two.replace(16, 4, bytes_of(0xcbf43926, 4));
  const std::string all = record("folder/a/x", 4) + two;
  const std::string path = new_folder() + "zip";
  write_bytes(path, kData + all + end(2, all.size(), 10));
  const auto records = read_zip_directory(path);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].name, "a/x");
  EXPECT_EQ(records[0].size, 4u);
  EXPECT_EQ(records[0].crc32, 0u);
  EXPECT_EQ(records[1].name, "b");
  EXPECT_EQ(records[1].size, 6u);
  EXPECT_EQ(records[1].crc32, 0xcbf43926u);
}

TEST(ZipDirectoryTest, ReadsADirectoryOf64Bits) {
  const std::string one = record("a", 1000);
  const auto archive = [&](uint64_t size, uint64_t at) {
    return kData + one + "PK\x06\x06" + std::string(28, '\0') + bytes_of(1, 8) +
           bytes_of(size, 8) + bytes_of(at, 8) + "PK\x06\x07" + bytes_of(0, 4) +
           bytes_of(10 + one.size(), 8) + bytes_of(1, 4) + end(0, 0, 0);
  };
  EXPECT_EQ(error(archive(one.size(), 10)).rfind("has a record 'a' of 1000"),
            0u);
  for (const uint64_t large :
       {uint64_t{1000}, uint64_t{1} << 63, ~uint64_t{0}}) {
    EXPECT_NE(error(archive(large, 10)).find("cut off"), std::string::npos);
    EXPECT_NE(error(archive(one.size(), large)).find("cut off"),
              std::string::npos);
  }
}

TEST(ZipDirectoryTest, RefusesADamagedDirectory) {
  const std::string one = record("a", 4);
  EXPECT_NE(error("").find("without a directory"), std::string::npos);
  EXPECT_NE(error(kData + one).find("without a directory"), std::string::npos);
  EXPECT_NE(error(kData + one + end(1, one.size(), 1000)).find("cut off"),
            std::string::npos);
  EXPECT_NE(error(kData + one + end(2, one.size(), 10)).find("record 1 of 2"),
            std::string::npos);
  EXPECT_NE(error(kData + one + end(1, one.size() - 1, 10))
                .find("within record 0 of 1"),
            std::string::npos);
  EXPECT_NE(error(kData + one + end(1, one.size(), 9)).find("at record 0"),
            std::string::npos);
}

}  // namespace

}  // namespace gpipe::internal
