#include "gpipe/program/working_directory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace gpipe {
namespace {

namespace fs = std::filesystem;

TEST(WorkingDirectoryTest, IsWhereBazelRunWasTyped) {
  const fs::path before = fs::current_path();
  unsetenv("BUILD_WORKING_DIRECTORY");
  enter_working_directory();
  EXPECT_EQ(fs::current_path(), before);

  const fs::path folder = fs::canonical(::testing::TempDir());
  setenv("BUILD_WORKING_DIRECTORY", folder.c_str(), /*overwrite=*/1);
  enter_working_directory();
  EXPECT_EQ(fs::current_path(), folder);
  fs::current_path(before);
}

TEST(WorkingDirectoryTest, NamesAFolderThatCannotBeEntered) {
  setenv("BUILD_WORKING_DIRECTORY", "/no/such", /*overwrite=*/1);
  std::string error;
  try {
    enter_working_directory();
  } catch (const std::invalid_argument& caught) {
    error = caught.what();
  }
  EXPECT_EQ(error,
            "BUILD_WORKING_DIRECTORY is '/no/such', which cannot be entered: "
            "No such file or directory");
}

}  // namespace
}  // namespace gpipe
