#include "training/data/open.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Writes class folders. Image i of class c has the colour (c, i, 0).
void write_classes(const std::string& root, int classes, int images) {
  for (int c = 0; c < classes; ++c) {
    const std::string folder = root + "class" + std::to_string(c) + "/";
    std::filesystem::create_directories(folder);
    for (int i = 0; i < images; ++i) {
      write_png(folder + std::to_string(i) + ".png",
                plain_image(2, 2, c, i, 0));
    }
  }
}

std::set<std::pair<int, int>> colours_in(const ImageDataset& images) {
  std::set<std::pair<int, int>> colours;
  for (int64_t i = 0; i < images.size(); ++i) {
    const auto item = images.get(i);
    const auto pixel = item.image.select(1, 0).select(1, 0);
    EXPECT_EQ(pixel[0].item<int>(), item.label);
    colours.emplace(pixel[0].item<int>(), pixel[1].item<int>());
  }
  return colours;
}

std::string error_of_open(const std::string& folder) {
  try {
    open_images(folder, 0.2, 0);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(OpenImagesTest, HoldsOutAPartOfEveryClass) {
  const std::string root = new_folder();
  write_classes(root, 3, 10);
  const Split split = open_images(root, 0.2, /*seed=*/1);
  EXPECT_EQ(split.train->size(), 24);
  EXPECT_EQ(split.test->size(), 6);
  const auto test = colours_in(*split.test);
  auto all = colours_in(*split.train);
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(std::count_if(test.begin(), test.end(),
                            [&](const auto& x) { return x.first == c; }),
              2);
  }
  all.insert(test.begin(), test.end());
  EXPECT_EQ(all.size(), 30U);
  EXPECT_EQ(colours_in(*open_images(root, 0.2, 1).test), test);
  EXPECT_NE(colours_in(*open_images(root, 0.2, 2).test), test);
}

TEST(OpenImagesTest, TakesTrainAndTestOrVal) {
  for (const char* name : {"test", "val"}) {
    const std::string root = new_folder();
    write_classes(root + "train/", 2, 3);
    write_classes(root + name + "/", 2, 1);
    const Split split = open_images(root, 0.2, 0);
    EXPECT_EQ(split.train->size(), 6);
    EXPECT_EQ(split.test->size(), 2);
    EXPECT_THAT(split.test->classes(), ElementsAre("class0", "class1"));
  }
}

TEST(OpenImagesTest, TakesCifarsBinaryFiles) {
  const std::string root = new_folder();
  const std::string record(3073, '\1');
  write_bytes(root + "data_batch_1.bin", record + record);
  write_bytes(root + "data_batch_2.bin", record);
  write_bytes(root + "test_batch.bin", record);
  const Split split = open_images(root, 0.2, 0);
  EXPECT_EQ(split.train->size(), 3);
  EXPECT_EQ(split.test->size(), 1);
}

TEST(OpenImagesTest, TakesMnistsFiles) {
  const std::string root = new_folder();
  const std::string one("\0\0\0\1", 4);
  for (const char* part : {"train", "t10k"}) {
    write_bytes(root + part + "-images-idx3-ubyte",
                std::string("\0\0\x8\3", 4) + one + one + one + "x");
    write_bytes(root + part + "-labels-idx1-ubyte",
                std::string("\0\0\x8\1", 4) + one + "\5");
  }
  const Split split = open_images(root, 0.2, 0);
  EXPECT_EQ(split.train->size(), 1);
  EXPECT_EQ(split.test->get(0).label, 5);
  std::filesystem::remove(root + "t10k-labels-idx1-ubyte");
  EXPECT_THAT(error_of_open(root), HasSubstr("t10k-labels-idx1-ubyte"));
}

TEST(OpenImagesTest, TellsWhatDoesNotFit) {
  EXPECT_THAT(error_of_open("/no/such/folder"), HasSubstr("no such folder"));
  const std::string root = new_folder();
  write_classes(root + "train/", 2, 1);
  EXPECT_THAT(error_of_open(root), HasSubstr("neither test/ nor val/"));
  write_classes(root + "val/", 3, 1);
  EXPECT_THAT(error_of_open(root), HasSubstr("train has 2 classes, val has 3"));
}

}  // namespace
}  // namespace gpipe::data
