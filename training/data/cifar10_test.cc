#include "training/data/cifar10.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string record(char label, char red, char green, char blue) {
  return std::string(1, label) + std::string(1024, red) +
         std::string(1024, green) + std::string(1024, blue);
}

std::string error_of_cifar10(const std::string& path) {
  try {
    Cifar10{{path}};
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Cifar10Test, ReadsRecordsOfSeveralFilesInOrder) {
  const std::string folder = new_folder();
  write_bytes(folder + "1.bin", record(3, 1, 2, 3) + record(0, 4, 5, 6));
  write_bytes(folder + "2.bin", record(9, '\xFF', 8, 9));
  const Cifar10 images({folder + "1.bin", folder + "2.bin"});
  ASSERT_EQ(images.size(), 3);
  EXPECT_EQ(images.classes().at(images.get(0).label), "cat");
  EXPECT_EQ(images.get(1).label, 0);
  EXPECT_TRUE(at::equal(images.get(1).image, plain_image(32, 32, 4, 5, 6)));
  EXPECT_TRUE(at::equal(images.get(2).image, plain_image(32, 32, 255, 8, 9)));
}

TEST(Cifar10Test, TheChecksumIsOfTheRecords) {
  const std::string folder = new_folder();
  const std::string first = record(3, 1, 2, 3);
  write_bytes(folder + "1.bin", first);
  write_bytes(folder + "2.bin", record(0, 4, 5, 6));
  write_bytes(folder + "both.bin", first + record(0, 4, 5, 6));
  write_bytes(folder + "label.bin", first + record(1, 4, 5, 6));
  write_bytes(folder + "pixel.bin", first + record(0, 4, 5, 7));
  const auto sum = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const auto& name : names) paths.push_back(folder + name);
    return Cifar10(paths).checksum();
  };
  EXPECT_EQ(sum({"both.bin"}), sum({"1.bin", "2.bin"}));
  EXPECT_NE(sum({"label.bin"}), sum({"both.bin"}));
  EXPECT_NE(sum({"pixel.bin"}), sum({"both.bin"}));
}

TEST(Cifar10Test, NamesAFileThatEndsWithinARecord) {
  const std::string path = new_folder() + "1.bin";
  write_bytes(path, record(1, 0, 0, 0) + "x");
  EXPECT_THAT(error_of_cifar10(path),
              AllOf(HasSubstr(path), HasSubstr("3074 bytes")));
}

TEST(Cifar10Test, NamesTheRecordOfALabelThatThereIsNot) {
  const std::string path = new_folder() + "1.bin";
  write_bytes(path, record(1, 0, 0, 0) + record(10, 0, 0, 0));
  EXPECT_THAT(error_of_cifar10(path),
              AllOf(HasSubstr(path), HasSubstr("record 1 has label 10")));
}

TEST(Cifar10Test, NamesAFileThatIsNotThere) {
  EXPECT_THAT(error_of_cifar10("/no/such.bin"), HasSubstr("/no/such.bin"));
}

}  // namespace
}  // namespace gpipe::data
