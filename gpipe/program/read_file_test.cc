#include "gpipe/program/read_file.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace gpipe::internal {
namespace {

// Writes a file, and returns its path.
std::string written(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(ReadFileTest, ReadsAllBytes) {
  std::string all;
  for (int k = 0; k < 256; ++k) all.push_back(static_cast<char>(k));
  all += "\r\n\n\x1A and what comes after it";
  EXPECT_EQ(read_file(written("all_bytes", all)), all);
}

TEST(ReadFileTest, NamesTheFileThatCannotBeReadOrIsEmpty) {
  for (const std::string& path :
       {written("empty", ""), ::testing::TempDir() + "missing",
        ::testing::TempDir()}) {
    try {
      read_file(path);
      ADD_FAILURE() << path;
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(error.msg(), path + ": cannot be read, or is empty");
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
