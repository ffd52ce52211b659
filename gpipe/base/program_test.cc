#include "gpipe/base/program.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/base/files.h"
#include "gpipe/base/processes.h"
#include "gpipe/distributed/error.h"
#include "gpipe/testing/thrown.h"

namespace gpipe {
namespace {

namespace fs = std::filesystem;

TEST(StandardStreamsTest, AreNotLeftToOtherFiles) {
  const int before = dup(STDIN_FILENO);
  close(STDIN_FILENO);
  begin_program();
  EXPECT_EQ(fs::read_symlink("/proc/self/fd/0"), "/dev/null");
  dup2(before, STDIN_FILENO);
  close(before);
}

TEST(WorkingDirectoryTest, IsWhereBazelRunWasTyped) {
  const fs::path before = fs::current_path();
  unsetenv("BUILD_WORKING_DIRECTORY");
  begin_program();
  EXPECT_EQ(fs::current_path(), before);

  const fs::path folder = fs::canonical(::testing::TempDir());
  setenv("BUILD_WORKING_DIRECTORY", folder.c_str(), /*overwrite=*/1);
  begin_program();
  EXPECT_EQ(fs::current_path(), folder);
  fs::current_path(before);
}

TEST(WorkingDirectoryTest, NamesAFolderThatCannotBeEntered) {
  setenv("BUILD_WORKING_DIRECTORY", "/no/such", /*overwrite=*/1);
  EXPECT_EQ(testing::thrown<std::invalid_argument>(begin_program),
            "BUILD_WORKING_DIRECTORY is '/no/such', which cannot be entered: "
            "No such file or directory");
}

TEST(OutputFilesTest, AreFilesOfTheirOwn) {
  check_output_files({{"svg", ""}, {"json", ""}, {"trace", "/no/such"}});
  const std::string folder = ::testing::TempDir();
  EXPECT_EQ(testing::thrown<std::invalid_argument>([&] {
              check_output_files({{"svg", "a"}, {"trace", folder}});
            }),
            "--trace=" + folder + " is a folder; name a file");
  EXPECT_EQ(testing::thrown<std::invalid_argument>([] {
              check_output_files({{"svg", "a"}, {"json", "b"}, {"trace", "a"}});
            }),
            "--svg and --trace name the same file, a; give each its own");
  EXPECT_EQ(
      testing::thrown<std::invalid_argument>([] {
        check_output_files({{"svg", "a"}, {"trace", "./b/../a"}});
      }),
      "--svg and --trace name the same file, ./b/../a; give each its own");
  EXPECT_EQ(testing::thrown<std::invalid_argument>([] {
              check_output_files({{"svg", "a"}}, {{"csv", "a"}, {"in", ""}});
            }),
            "--csv and --svg name the same file, a; give each its own");
}

TEST(LoadOperatorsTest, RefusesAnEmptyPath) {
  load_operators("");
  EXPECT_EQ(testing::thrown<std::invalid_argument>([] { load_operators(","); }),
            "--operators=,: a path is empty");
}

using std::chrono::milliseconds;

TEST(MillisecondsTest, AreRoundedUp) {
  EXPECT_EQ(milliseconds_of(0.25), milliseconds(250));
  EXPECT_EQ(milliseconds_of(60), milliseconds(60000));
  EXPECT_EQ(milliseconds_of(1e-9), milliseconds(1));
  EXPECT_EQ(milliseconds_of(0), milliseconds(0));
  EXPECT_EQ(milliseconds_of(-2), milliseconds(-2000));
}

TEST(MillisecondsTest, EndWhereTheirIntegerDoes) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(milliseconds_of(infinity), milliseconds::max());
  EXPECT_EQ(milliseconds_of(1e300), milliseconds::max());
  EXPECT_EQ(milliseconds_of(-infinity), milliseconds::min());
  EXPECT_EQ(milliseconds_of(std::numeric_limits<double>::quiet_NaN()),
            milliseconds(0));
}

constexpr int kBlocks = 256;
constexpr std::size_t kBlock = 256 << 10;
constexpr int kPages = kBlocks * static_cast<int>(kBlock / 4096);

// Allocates and frees what a step may need. Returns the page faults.
long page_faults_of_step() {
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  {
    std::vector<std::unique_ptr<char[]>> blocks;
    for (int k = 0; k < kBlocks; ++k) {
      blocks.emplace_back(new char[kBlock]);
      std::memset(blocks.back().get(), k, kBlock);
    }
  }
  ::getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(HostMemoryTest, TheEnvironmentDecides) {
  for (const char* name :
       {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    ::setenv(name, "glibc.malloc.trim_threshold=1", 1);
    EXPECT_TRUE(keep_freed_memory_variables().empty()) << name;
    ::unsetenv(name);
  }
}

TEST(HostMemoryTest, AStepUsesTheMemoryOfTheStepBefore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator is not glibc's";
#endif
  // glibc reads the variables when a program starts: this test starts again.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto take_two_steps = [] {
    page_faults_of_step();
    std::exit(page_faults_of_step() < kPages / 100 ? 0 : 1);
  };
  EXPECT_EXIT(take_two_steps(), ::testing::ExitedWithCode(1), "");
  const auto variables = keep_freed_memory_variables();
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  EXPECT_EXIT(take_two_steps(), ::testing::ExitedWithCode(0), "");
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
}

TEST(ParseDevicesTest, ReadsAList) {
  EXPECT_TRUE(parse_devices("").empty());
  EXPECT_EQ(parse_devices("cpu,cpu").size(), 2);
  EXPECT_EQ(first_device({c10::Device("cpu")}), c10::Device("cpu"));
}

TEST(ParseDevicesTest, NamesTheDevicesThatThereAre) {
  for (const std::string text : {"cpu,gpu", "cuda:77", "cpu:0:1"}) {
    EXPECT_THAT([&] { parse_devices(text); },
                ::testing::ThrowsMessage<std::invalid_argument>(
                    ::testing::HasSubstr("it has cpu")))
        << text;
    EXPECT_THROW(with_value_error([&] { return parse_devices(text); }),
                 c10::ValueError);
  }
}

using internal::read_file;
using internal::write_file;

// Writes a file, and returns its path.
std::string written(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + name;
  write_file(path, bytes);
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
    EXPECT_EQ(testing::thrown<c10::ValueError>([&] { read_file(path); }),
              path + ": cannot be read, or is empty");
  }
}

TEST(WriteFileTest, NamesTheFileThatCannotBeWritten) {
  const std::string path = ::testing::TempDir() + "missing/file";
  EXPECT_EQ(
      testing::thrown<c10::ValueError>([&] { write_file(path, "bytes"); }),
      path + ": cannot be written");
}

TEST(RankAtFault, IsThatOfAPeerError) {
  for (const Fault fault :
       {Fault::kFailed, Fault::kDied, Fault::kFrozen, Fault::kTimeout,
        Fault::kDisagree, Fault::kLeft, Fault::kRefused}) {
    RankFailure failure;
    failure.fault = fault;
    failure.rank = 12;
    failure.reporter = 3;
    failure.what = "rank 7 has failed";
    EXPECT_EQ(rank_at_fault("train: " + failure.to_string()), 12)
        << failure.to_string();
  }
}

TEST(RankAtFault, IsNoneInOtherLines) {
  for (const char* line :
       {"", "rank ", "rank 1", "rank 1 ", "rank 1 has begun", "rank x has died",
        "rank -1 has died", "rank 99999999999 has died", "rank 1: has died"}) {
    EXPECT_EQ(rank_at_fault(line), -1) << line;
  }
  EXPECT_EQ(rank_at_fault("rank 3 is ready, rank 4 is frozen"), 4);
}

}  // namespace
}  // namespace gpipe
