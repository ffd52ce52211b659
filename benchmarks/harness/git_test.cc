#include "benchmarks/harness/git.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace gpipe::benchmarks {
namespace {

constexpr char kHash[] = "0123456789abcdef0123456789abcdef01234567";

class GitTest : public ::testing::Test {
 protected:
  GitTest() { std::filesystem::remove_all(folder_); }

  void write(const std::string& path, const std::string& text) const {
    const auto file = std::filesystem::path(folder_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string folder_ = ::testing::TempDir() + "/git_test";
};

TEST_F(GitTest, ReadsABranchInAFileOfItsOwn) {
  write(".git/HEAD", "ref: refs/heads/main\n");
  EXPECT_EQ(commit_of(folder_), "");  // no commit yet
  write(".git/refs/heads/main", std::string(kHash) + "\n");
  EXPECT_EQ(commit_of(folder_), "0123456789ab");
}

TEST_F(GitTest, ReadsAPackedBranchAndADetachedHead) {
  write(".git/HEAD", "ref: refs/heads/main\n");
  write(".git/packed-refs",
        "# pack-refs with: peeled\nffff refs/heads/other\n" +
            std::string(kHash) + " refs/heads/main\n");
  EXPECT_EQ(commit_of(folder_), "0123456789ab");
  write(".git/HEAD", "abcdef0123456789\n");
  EXPECT_EQ(commit_of(folder_), "abcdef012345");
}

TEST_F(GitTest, FollowsTheFileOfAWorktree) {
  write("tree/.git", "gitdir: ../main/.git/worktrees/tree\n");
  write("main/.git/worktrees/tree/HEAD", "ref: refs/heads/topic\n");
  write("main/.git/worktrees/tree/commondir", "../..\n");
  write("main/.git/refs/heads/topic", std::string(kHash) + "\n");
  EXPECT_EQ(commit_of(folder_ + "/tree"), "0123456789ab");
}

TEST_F(GitTest, AFolderThatIsNoCheckoutHasNone) {
  EXPECT_EQ(commit_of(folder_), "");
}

}  // namespace
}  // namespace gpipe::benchmarks
