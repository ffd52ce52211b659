#include "training/data/mask_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "models/testing/files.h"
#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using gpipe::testing::write_bytes;
using ::testing::HasSubstr;

std::string new_root() {
  const std::string root = new_folder();
  std::filesystem::create_directory(root + "images");
  std::filesystem::create_directory(root + "masks");
  return root;
}

void write_pair(const std::string& root, const std::string& name,
                uint8_t colour) {
  write_png(root + "images/" + name + ".png",
            plain_image(2, 3, colour, colour, colour));
  write_png(root + "masks/" + name + ".png", plain_image(2, 3, 255, 255, 255));
}

TEST(MaskFolderTest, PairsByNameInOrder) {
  const std::string root = new_root();
  write_pair(root, "b", 2);
  write_pair(root, "a.1", 1);
  write_jpeg(root + "images/C.jpeg", plain_image(8, 8, 3, 3, 3));
  write_png(root + "masks/C.PNG", plain_image(8, 8, 0, 0, 0));
  write_bytes(root + "images/readme.txt", "not an image");
  write_bytes(root + "masks/._b.png", "not an image");
  std::filesystem::create_directory(root + "images/more.png");
  const MaskFolder folder(root);
  ASSERT_EQ(folder.size(), 3);
  EXPECT_THAT(folder.image_path(0), HasSubstr("images/C.jpeg"));
  EXPECT_THAT(folder.mask_path(0), HasSubstr("masks/C.PNG"));
  EXPECT_THAT(folder.image_path(1), HasSubstr("images/a.1.png"));
  EXPECT_THAT(folder.mask_path(2), HasSubstr("masks/b.png"));
  EXPECT_FALSE(folder.get(0).mask.any().item<bool>());
  EXPECT_TRUE(at::equal(folder.get(1).image, plain_image(2, 3, 1, 1, 1)));
  EXPECT_TRUE(at::equal(folder.get(2).image, plain_image(2, 3, 2, 2, 2)));
}

TEST(MaskFolderTest, APixelIsInsideFrom128OnInAnyChannel) {
  const std::string root = new_root();
  write_pair(root, "a", 0);
  at::Tensor mask = plain_image(2, 3, 0, 0, 0);
  mask[0] = at::tensor({0, 127, 128, 255, 0, 0}, at::kByte).view({2, 3});
  mask[2][1][1] = 200;
  write_png(root + "masks/a.png", mask);
  EXPECT_TRUE(
      at::equal(MaskFolder(root).get(0).mask,
                at::tensor({0, 0, 1, 1, 1, 0}).to(at::kBool).view({1, 2, 3})));
}

TEST(MaskFolderTest, IsReadFromSeveralThreads) {
  const std::string root = new_root();
  for (uint8_t i = 0; i < 4; ++i) write_pair(root, std::to_string(i), i);
  const MaskFolder folder(root);
  std::vector<int64_t> sums(4);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back(
        [&, i] { sums[i] = folder.get(i).image.sum().item<int64_t>(); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sums, (std::vector<int64_t>{0, 18, 36, 54}));
}

TEST(MaskFolderTest, NamesMissingFolders) {
  EXPECT_THAT(value_error_of([] { MaskFolder("/no/such/folder"); }),
              HasSubstr("/no/such/folder: no such folder"));
  const std::string root = new_folder();
  EXPECT_THAT(value_error_of([&] { MaskFolder{root}; }),
              HasSubstr(root + ": holds no folder images/; expected images/"));
  std::filesystem::create_directory(root + "images");
  EXPECT_THAT(value_error_of([&] { MaskFolder{root}; }),
              HasSubstr(root + ": holds no folder masks/"));
  std::filesystem::create_directory(root + "masks");
  EXPECT_THAT(value_error_of([&] { MaskFolder{root}; }),
              HasSubstr(root + "images: holds no .jpg, .jpeg or .png file"));
  const std::string loop = root + "loop";
  std::filesystem::create_symlink(loop, loop);
  EXPECT_EQ(value_error_of([&] { MaskFolder{loop}; }),
            loop + ": cannot be read: Too many levels of symbolic links");
}

TEST(MaskFolderTest, NamesWhatHasNoPartner) {
  const std::string root = new_root();
  write_pair(root, "a", 0);
  write_png(root + "images/b.png", plain_image(2, 3, 0, 0, 0));
  EXPECT_THAT(value_error_of([&] { MaskFolder{root}; }),
              AllOf(HasSubstr(root + "images/b.png: has no mask"),
                    HasSubstr("add " + root + "masks/b.png")));
  write_png(root + "masks/b.png", plain_image(2, 3, 0, 0, 0));
  EXPECT_EQ(MaskFolder(root).size(), 2);
  write_png(root + "masks/c.png", plain_image(2, 3, 0, 0, 0));
  EXPECT_THAT(value_error_of([&] { MaskFolder{root}; }),
              HasSubstr(root + "masks/c.png: is a mask without an image"));
}

TEST(MaskFolderTest, NamesTwoFilesOfOneName) {
  const std::string root = new_root();
  write_pair(root, "a", 0);
  write_jpeg(root + "masks/a.jpg", plain_image(2, 3, 0, 0, 0));
  EXPECT_THAT(value_error_of([&] { MaskFolder{root}; }),
              AllOf(HasSubstr("masks/a.jpg"), HasSubstr("masks/a.png"),
                    HasSubstr("has the same name as")));
}

TEST(MaskFolderTest, NamesAFileThatCannotBeUsedWhenItIsRead) {
  const std::string root = new_root();
  write_pair(root, "a", 0);
  const MaskFolder folder(root);
  write_png(root + "masks/a.png", plain_image(3, 2, 0, 0, 0));
  EXPECT_THAT(value_error_of([&] { folder.get(0); }),
              HasSubstr("masks/a.png: 2x3 pixels, but its image " + root +
                        "images/a.png has 3x2"));
  write_png(root + "masks/a.png", plain_image(2, 3, 1, 1, 1));
  EXPECT_THAT(value_error_of([&] { folder.get(0); }),
              HasSubstr("masks/a.png: holds values 0 and 1 of 255"));
  write_png_of_16_bits(root + "masks/a.png", at::ones({2, 3}, at::kInt));
  EXPECT_THAT(value_error_of([&] { folder.get(0); }),
              HasSubstr("masks/a.png: holds values up to 1 of 65535; store "
                        "65535 for the inside"));
  write_png_of_16_bits(root + "masks/a.png", at::zeros({2, 3}, at::kInt));
  EXPECT_FALSE(folder.get(0).mask.any().item<bool>());
  write_bytes(root + "images/a.png", "not an image");
  EXPECT_THAT(value_error_of([&] { folder.get(0); }),
              HasSubstr("images/a.png"));
}

}  // namespace
}  // namespace gpipe::data
