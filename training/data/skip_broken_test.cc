#include "training/data/skip_broken.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "models/testing/files.h"
#include "training/data/image_dataset.h"
#include "training/data/mask_folder.h"
#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::read_bytes;
using gpipe::testing::value_error_of;
using gpipe::testing::write_bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Creates <root>/a/{0,1,2}.png and <root>/b/{0,1,2}.png. Image i of all six has
// the colour i. The files of `broken` are truncated.
std::string folder_with(const std::vector<int>& broken) {
  const std::string root = new_folder();
  for (int i = 0; i < 6; ++i) {
    const std::string folder = root + (i < 3 ? "a/" : "b/");
    std::filesystem::create_directories(folder);
    const std::string path = folder + std::to_string(i % 3) + ".png";
    write_png(path, plain_image(2, 2, static_cast<uint8_t>(i), 0, 0));
    for (const int each : broken) {
      // The file is truncated within its pixels.
      if (each == i) write_bytes(path, read_bytes(path).substr(0, 40));
    }
  }
  return root;
}

std::vector<int> colours(const ImageDataset& images) {
  std::vector<int> colours;
  for (int64_t i = 0; i < images.size(); ++i) {
    const LabelledImage item = images.get(i);
    colours.push_back(item.image[0][0][0].item<int>());
    EXPECT_EQ(item.label, colours.back() < 3 ? 0 : 1);
  }
  return colours;
}

class SkipBrokenTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines_;
  const std::function<void(const std::string&)> report_ =
      [this](const std::string& line) { lines_.push_back(line); };
};

TEST_F(SkipBrokenTest, GivesTheNextImageThatCanBeRead) {
  const std::string root = folder_with({1, 2, 5});
  const SkipBroken images(std::make_shared<ImageFolder>(root), report_);
  EXPECT_EQ(images.size(), 6);
  EXPECT_THAT(images.classes(), ElementsAre("a", "b"));
  EXPECT_EQ(images.broken(), 0);
  EXPECT_THAT(colours(images), ElementsAre(0, 3, 3, 3, 4, 0));
  EXPECT_EQ(images.broken(), 3);
  EXPECT_THAT(lines_, ElementsAre(StartsWith(root + "a/1.png: broken PNG"),
                                  StartsWith(root + "a/2.png: broken PNG"),
                                  StartsWith(root + "b/2.png: broken PNG")));
}

TEST_F(SkipBrokenTest, TellsOfAFileOnceAndGivesTheSameInAnyOrder) {
  const std::string root = folder_with({3});
  const SkipBroken images(std::make_shared<ImageFolder>(root), report_);
  for (const int64_t i : {3, 2, 3, 4, 3}) {
    EXPECT_EQ(images.get(i).image[0][0][0].item<int>(), i == 3 ? 4 : i);
  }
  EXPECT_THAT(lines_, ElementsAre(StartsWith(root + "b/0.png")));
  EXPECT_EQ(images.broken(), 1);
}

TEST_F(SkipBrokenTest, StaysWithinItsPartOfASplit) {
  const std::string root = folder_with({1});
  const auto folder = std::make_shared<ImageFolder>(root);
  const SkipBroken part(subset(folder, {0, 1, 4}), nullptr);
  EXPECT_EQ(part.get(1).image[0][0][0].item<int>(), 4);
}

TEST_F(SkipBrokenTest, IsAnErrorIfNothingCanBeRead) {
  const std::string root = folder_with({0, 1, 2, 3, 4, 5});
  const SkipBroken images(std::make_shared<ImageFolder>(root), nullptr);
  EXPECT_THAT(value_error_of([&] { images.get(4); }),
              AllOf(StartsWith("none of 6 elements can be read"),
                    HasSubstr(root + "b/0.png: broken PNG")));
  EXPECT_THAT(value_error_of([&] { images.get(4); }),
              StartsWith("none of 6 elements can be read"));
}

TEST_F(SkipBrokenTest, LeavesABrokenOneOutOfATest) {
  const ImageFolder images(folder_with({1}));
  BrokenFiles broken(6, report_);
  std::vector<int> there;
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < 6; ++i) {
      const auto found = broken.read_or_none(
          i, [&](int64_t k) { return images.get(k).image; });
      if (found) there.push_back((*found)[0][0][0].item<int>());
    }
  }
  EXPECT_THAT(there, ElementsAre(0, 2, 3, 4, 5, 0, 2, 3, 4, 5));
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(SkipBrokenTest, LetsOtherErrorsThrough) {
  BrokenFiles broken(3, report_);
  const auto get = [](int64_t k) -> int64_t {
    if (k == 1) throw std::runtime_error("the disk");
    return k;
  };
  EXPECT_EQ(broken.read(2, get), 2);
  EXPECT_THROW(broken.read(1, get), std::runtime_error);
  EXPECT_EQ(broken.count(), 0);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(SkipBrokenTest, ServesMasksToo) {
  const std::string root = new_folder();
  for (const char* folder : {"images/", "masks/"}) {
    std::filesystem::create_directory(root + folder);
    for (uint8_t i = 0; i < 3; ++i) {
      write_png(root + folder + std::to_string(i) + ".png",
                plain_image(2, 2, 255, i, i));
    }
  }
  write_bytes(root + "masks/1.png", "not an image");
  const MaskFolder folder(root);
  BrokenFiles broken(folder.size(), report_);
  const auto second = broken.read(1, [&](int64_t k) { return folder.get(k); });
  EXPECT_EQ(second.image[1][0][0].item<int>(), 2);
  EXPECT_THAT(lines_, ElementsAre(StartsWith(root + "masks/1.png")));
}

TEST_F(SkipBrokenTest, ReadsFromSeveralThreads) {
  const std::string root = folder_with({0, 1, 2});
  int lines = 0;
  const SkipBroken images(std::make_shared<ImageFolder>(root),
                          [&](const std::string&) { ++lines; });
  std::vector<int> found(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < found.size(); ++t) {
    threads.emplace_back(
        [&, t] { found[t] = images.get(0).image[0][0][0].item<int>(); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(found, ElementsAre(3, 3, 3, 3));
  EXPECT_EQ(lines, 3);
}

}  // namespace
}  // namespace gpipe::data
