#include "models/weights/zip_start.h"

#include <gtest/gtest.h>

#include <string>

#include "models/weights/testing/files.h"

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

}  // namespace
}  // namespace gpipe::internal
