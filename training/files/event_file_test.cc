#include "training/files/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/testing/files.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::names_in;
using testing::new_folder;
using testing::read_bytes;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing::write_bytes;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[c & 15];
  }
  return text;
}

// The bytes that TensorBoard 2.21 writes for these events.
constexpr char kVersion[] =
    "1800000000000000a37f4b22"
    "0900002040fc54d9411a0d627261696e2e4576656e743a32"
    "2b353110";
constexpr char kRestart[] =
    "0f000000000000006d532b09"
    "0900006040fc54d94110083a020801"
    "87fe3872";
constexpr char kScalars[] =
    "2c00000000000000f4aecc45"
    "090000a040fc54d94110ac022a1e0a110a0a747261696e2f6c6f7373150000003f0a090a02"
    "6c72156f1283ba"
    "ee55d676";

TEST(EventFileTest, WritesTheBytesThatTensorBoardDoes) {
  const std::string folder = new_folder();
  EventFile file(folder, 1700000000.5);
  ASSERT_THAT(names_in(folder), SizeIs(1));
  const std::string path = folder + names_in(folder)[0];
  // Each record is in the file as soon as its call returns.
  EXPECT_EQ(hex(read_bytes(path)), kVersion);
  file.restart(1700000001.5, 8);
  EXPECT_EQ(hex(read_bytes(path)), std::string(kVersion) + kRestart);
  file.scalars(1700000002.5, 300, {{"train/loss", 0.5}, {"lr", -1e-3}});
  EXPECT_EQ(hex(read_bytes(path)), std::string(kVersion) + kRestart + kScalars);
}

TEST(EventFileTest, KeepsNumbersThatAreNone) {
  const std::string folder = new_folder();
  EventFile file(folder, 0);
  const std::string path = folder + names_in(folder)[0];
  file.scalars(0, 1, {{"a", std::nan("")}, {"b", -INFINITY}, {"c", 1e300}});
  const std::string bytes = hex(read_bytes(path));
  EXPECT_THAT(bytes, HasSubstr("0a0161150000c07f"));
  EXPECT_THAT(bytes, HasSubstr("0a016215000080ff"));
  EXPECT_THAT(bytes, HasSubstr("0a0163150000807f"));
}

TEST(EventFileTest, HasANameThatIsReadAfterThoseThatAreThere) {
  const std::string folder = new_folder();
  write_bytes(folder + "events.out.tfevents.99999999999.far", "");
  write_bytes(folder + "metrics.csv", "");
  const EventFile first(folder, 1234.9);
  const EventFile second(folder, 1234.0);
  const EventFile third(folder, 17.0);
  const std::vector<std::string> names = names_in(folder);
  EXPECT_THAT(EventFile::all_in(folder), SizeIs(3));
  EXPECT_EQ(EventFile::all_in(folder)[2], folder + names[2]);
  EXPECT_THAT(names, ElementsAre(StartsWith("events.out.tfevents.0000001234."),
                                 StartsWith("events.out.tfevents.0000001235."),
                                 StartsWith("events.out.tfevents.0000001236."),
                                 EndsWith(".far"), "metrics.csv"));
}

TEST(EventFileTest, NamesAFolderThatIsNotThere) {
  EXPECT_THAT(testing::error_of([] { EventFile("/no/such", 1.0); }),
              HasSubstr("/no/such/events.out.tfevents.0000000001."));
}

}  // namespace
}  // namespace gpipe::internal
