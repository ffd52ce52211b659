#include "gpipe/program/read_file.h"

#include <gtest/gtest.h>

#include <string>

#include "training/testing/image_files.h"

namespace gpipe::internal {
namespace {

TEST(ReadFileTest, GivesEveryByteAsItIs) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  all += "\r\n\n\x1A and what comes after it";
  const std::string path = new_folder() + "bytes";
  write_bytes(path, all);
  EXPECT_EQ(read_file(path), all);
}

TEST(ReadFileTest, NamesAFileThatCannotBeUsed) {
  const std::string folder = new_folder();
  write_bytes(folder + "empty", "");
  for (const std::string& path :
       {folder + "missing", folder + "empty", folder}) {
    EXPECT_EQ(error_of([&] { read_file(path); }),
              path + ": cannot be read, or is empty");
  }
}

}  // namespace
}  // namespace gpipe::internal
