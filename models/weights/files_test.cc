#include "models/weights/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/testing/files.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using testing::names_in;
using testing::new_folder;
using testing::read_bytes;
using testing::write_bytes;

TEST(AtomicFileTest, AppearsWithAllBytesAtCommit) {
  const std::string folder = new_folder();
  const std::string path = folder + "file";
  AtomicFile file(path);
  EXPECT_EQ(file.temporary_path().rfind(path + ".tmp.", 0), 0u);
  file.write("one", 3);
  file.write("", 0);
  file.write("\0two", 4);
  EXPECT_EQ(file.size(), 7u);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  file.commit();
  EXPECT_EQ(read_bytes(path), std::string("one\0two", 7));
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"file"});
}

TEST(AtomicFileTest, WithoutCommitTheOldFileStaysAndNothingElse) {
  const std::string folder = new_folder();
  const std::string path = folder + "file";
  write_bytes(path, "old");
  {
    AtomicFile file(path);
    file.write("new and longer", 14);
    EXPECT_EQ(names_in(folder).size(), 2u);
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"file"});
}

TEST(RemoveFileTest, RemovesAFileThatExists) {
  const std::string folder = new_folder();
  const std::string path = folder + "file";
  remove_file(path);
  write_bytes(path, "old");
  remove_file(path);
  EXPECT_TRUE(names_in(folder).empty());
  write_bytes(path, "old");
  EXPECT_NE(error_of([&] {
              remove_file(path + "/part");
            }).find("/part: cannot be removed: "),
            std::string::npos);
}

TEST(AtomicFileTest, ReplacesAFile) {
  const std::string path = new_folder() + "file";
  write_bytes(path, "old and longer");
  AtomicFile file(path);
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(read_bytes(path), "new");
}

TEST(AtomicFileTest, TwoForOnePathDoNotMeet) {
  const std::string folder = new_folder();
  const std::string path = folder + "file";
  AtomicFile one(path);
  AtomicFile two(path);
  one.write("one", 3);
  two.write("two!", 4);
  two.commit();
  EXPECT_EQ(read_bytes(path), "two!");
  one.commit();
  EXPECT_EQ(read_bytes(path), "one");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"file"});
}

// The taken name may come from a dead process in a container, where ids repeat.
TEST(AtomicFileTest, GoesPastNamesThatAreTaken) {
  const std::string folder = new_folder();
  const std::string path = folder + "file";
  const std::string taken = AtomicFile(path).temporary_path();
  const std::size_t dot = taken.rfind('.') + 1;
  const uint64_t number = std::stoull(taken.substr(dot));
  for (uint64_t k = 1; k <= 3; ++k) {
    write_bytes(taken.substr(0, dot) + std::to_string(number + k), "stale");
  }
  AtomicFile file(path);
  EXPECT_EQ(file.temporary_path(),
            taken.substr(0, dot) + std::to_string(number + 4));
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(read_bytes(path), "new");
  EXPECT_EQ(names_in(folder).size(), 4u);
}

TEST(AtomicFileTest, NamesWhatCannotBeUsed) {
  const std::string folder = new_folder();
  EXPECT_EQ(
      error_of([&] { AtomicFile file(folder + "missing/file"); }),
      folder + "missing/file: cannot be created: No such file or directory");
  EXPECT_EQ(error_of([&] { AtomicFile file(folder); }),
            folder + ": cannot be replaced, because it is not a regular file");
  EXPECT_EQ(error_of([&] { AtomicFile file("/dev/null"); }),
            "/dev/null: cannot be replaced, because it is not a regular file");
  struct stat status;
  ASSERT_EQ(stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

// A limit on the file size stands in for a full disk: write() writes a part of
// the bytes and then fails.
TEST(AtomicFileTest, AWriteThatFailsLeavesTheOldFile) {
  const std::string folder = new_folder();
  const std::string path = folder + "file";
  write_bytes(path, "old");
  testing::with_file_limit(1000, [&] {
    AtomicFile file(path);
    const std::string bytes(900, 'x');
    file.write(bytes.data(), bytes.size());
    EXPECT_EQ(error_of([&] { file.write(bytes.data(), bytes.size()); }),
              path + ": cannot be written: File too large");
    EXPECT_EQ(file.size(), 1000u);
    EXPECT_EQ(error_of([&] { file.write("x", 1); }),
              path + ": nothing can be written after an error or commit()");
    EXPECT_EQ(error_of([&] { file.commit(); }),
              path + ": cannot be committed after an error or commit()");
  });
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"file"});
}

TEST(AtomicFileTest, MayBeCompleteBeforeItHasItsName) {
  const std::string path = new_folder() + "file";
  AtomicFile file(path);
  file.write("new", 3);
  file.finish();
  EXPECT_EQ(read_bytes(file.temporary_path()), "new");
  EXPECT_EQ(error_of([&] { file.write("x", 1); }),
            path + ": nothing can be written after an error or commit()");
  EXPECT_EQ(error_of([&] { file.finish(); }),
            path + ": cannot be finished after an error or commit()");
  file.commit();
  EXPECT_EQ(read_bytes(path), "new");
}

TEST(AtomicFileTest, CommitsOnce) {
  const std::string path = new_folder() + "file";
  AtomicFile file(path);
  file.commit();
  EXPECT_EQ(error_of([&] { file.commit(); }),
            path + ": cannot be committed after an error or commit()");
  EXPECT_EQ(read_bytes(path), "");
}

TEST(MakeFoldersTest, MakesMissingParentsAndNamesWhatCannotBeMade) {
  const std::string folder = new_folder();
  make_folders(folder + "a/b//c/");
  make_folders(folder + "a/b");
  make_folders("");
  EXPECT_EQ(names_in(folder + "a/b"), std::vector<std::string>{"c"});
  write_bytes(folder + "file", "");
  EXPECT_EQ(error_of([&] { make_folders(folder + "file"); }),
            folder + "file: is not a folder");
  EXPECT_EQ(error_of([&] { make_folders(folder + "file/a"); }),
            folder + "file: is not a folder");
  EXPECT_EQ(error_of([&] { make_folders("/proc/a"); }),
            "/proc/a: cannot be created: No such file or directory");
}

TEST(FileReaderTest, AFifoWithoutAWriterIsAnError) {
  const std::string path = new_folder() + "fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { FileReader reader(path); }),
            path + ": is not a regular file");
}

}  // namespace
}  // namespace gpipe::internal
