#include "training/data/image_folder.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string folder_with_classes(const std::vector<std::string>& classes) {
  const std::string root = new_folder();
  for (const auto& name : classes) {
    std::filesystem::create_directory(root + name);
  }
  return root;
}

TEST(ImageFolderTest, SortsClassesAndFiles) {
  const std::string root = folder_with_classes({"dog", "cat", ".hidden"});
  write_png(root + "dog/1.png", plain_image(2, 3, 1, 1, 1));
  write_png(root + "cat/b.PNG", plain_image(2, 3, 2, 2, 2));
  write_jpeg(root + "cat/a.jpeg", plain_image(2, 3, 3, 3, 3));
  write_bytes(root + "cat/readme.txt", "not an image");
  write_bytes(root + "cat/._a.jpg", "not an image");
  const ImageFolder folder(root);
  EXPECT_THAT(folder.classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(folder.labels(), ElementsAre(0, 0, 1));
  ASSERT_EQ(folder.size(), 3);
  EXPECT_THAT(folder.path(0), HasSubstr("cat/a.jpeg"));
  EXPECT_THAT(folder.path(1), HasSubstr("cat/b.PNG"));
  const LabelledImage dog = folder.get(2);
  EXPECT_EQ(dog.label, 1);
  EXPECT_TRUE(at::equal(dog.image, plain_image(2, 3, 1, 1, 1)));
}

TEST(ImageFolderTest, NamesABrokenFileWhenItIsRead) {
  const std::string root = folder_with_classes({"cat"});
  write_bytes(root + "cat/broken.jpg", "\xFF\xD8 and then nothing");
  const ImageFolder folder(root);
  EXPECT_THAT(error_of([&] { folder.get(0); }), HasSubstr("cat/broken.jpg"));
}

TEST(ImageFolderTest, NamesWhatIsMissing) {
  EXPECT_THAT(error_of([] { ImageFolder("/no/such/folder"); }),
              HasSubstr("/no/such/folder: no such folder"));
  const std::string empty = new_folder();
  EXPECT_THAT(error_of([&] { ImageFolder{empty}; }),
              HasSubstr("no class folders"));
  std::filesystem::create_directory(empty + "cat");
  EXPECT_THAT(error_of([&] { ImageFolder{empty}; }),
              HasSubstr("cat: holds no .jpg, .jpeg or .png file"));
}

}  // namespace
}  // namespace gpipe::data
