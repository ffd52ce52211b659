#include "benchmarks/harness/report/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

using ::testing::HasSubstr;

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string error_of(const std::string& path) {
  try {
    const OutputFile file("plot", path, {".svg", ".json"});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(OutputFileTest, KeepsWhatThereIsUntilItWrites) {
  const std::string path = ::testing::TempDir() + "/kept.svg";
  std::ofstream(path) << "what is longer";
  const OutputFile file("plot", path, {".svg"});
  EXPECT_EQ(content_of(path), "what is longer");
  file.write("new");
  EXPECT_EQ(content_of(path), "new");
}

TEST(OutputFileTest, LeavesNoEmptyFileBehind) {
  const std::string path = ::testing::TempDir() + "/absent.svg";
  std::remove(path.c_str());
  const OutputFile file("plot", path, {".svg"});
  EXPECT_FALSE(std::ifstream(path).is_open());
  file.write("new");
  EXPECT_EQ(content_of(path), "new");
}

TEST(OutputFileTest, KnowsItsEnding) {
  const OutputFile file("plot", ::testing::TempDir() + "/a.json", {".json"});
  EXPECT_TRUE(file.is_wanted());
  EXPECT_TRUE(file.ends_in(".json"));
  EXPECT_FALSE(file.ends_in(".svg"));
  EXPECT_FALSE(OutputFile("plot", "", {".svg"}).is_wanted());
}

TEST(OutputFileTest, RefusesBeforeTheWork) {
  EXPECT_THAT(error_of("/no/such/folder/a.svg"),
              HasSubstr("--plot=/no/such/folder/a.svg: cannot be written"));
  EXPECT_THAT(error_of("a.png"), HasSubstr("ends in .svg or .json"));
}

}  // namespace
}  // namespace gpipe::benchmarks
