#include "training/data/image_dataset.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "models/testing/files.h"
#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using gpipe::testing::write_bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- A folder of class folders

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
  std::filesystem::create_directory(root + "cat/.copies");
  write_png(root + "cat/.copies/a.png", plain_image(2, 3, 4, 4, 4));
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
  EXPECT_THAT(value_error_of([&] { folder.get(0); }),
              HasSubstr("cat/broken.jpg"));
}

TEST(ImageFolderTest, NamesWhatIsMissing) {
  EXPECT_THAT(value_error_of([] { ImageFolder("/no/such/folder"); }),
              HasSubstr("/no/such/folder: no such folder"));
  const std::string empty = new_folder();
  EXPECT_THAT(value_error_of([&] { ImageFolder{empty}; }),
              HasSubstr("no class folders"));
  std::filesystem::create_directory(empty + "cat");
  EXPECT_THAT(value_error_of([&] { ImageFolder{empty}; }),
              HasSubstr("cat: holds no .jpg, .jpeg or .png file"));
}

// A link to itself, since the tests may run as a user who may read all files.
TEST(ImageFolderTest, NamesWhatCannotBeRead) {
  const std::string root = folder_with_classes({"cat"});
  const std::string loop = root + "cat/loop.jpg";
  std::filesystem::create_symlink(loop, loop);
  const std::string reason =
      ": cannot be read: Too many levels of symbolic links";
  EXPECT_EQ(value_error_of([&] { ImageFolder{root}; }), loop + reason);
  EXPECT_EQ(value_error_of([&] { ImageFolder{loop}; }), loop + reason);
}

// ---- CIFAR-10

std::string record(char label, char red, char green, char blue) {
  return std::string(1, label) + std::string(1024, red) +
         std::string(1024, green) + std::string(1024, blue);
}

std::string error_of_cifar10(const std::string& path) {
  return value_error_of([&] { read_cifar10({path}); });
}

TEST(Cifar10Test, ReadsRecordsOfSeveralFilesInOrder) {
  const std::string folder = new_folder();
  write_bytes(folder + "1.bin", record(3, 1, 2, 3) + record(0, 4, 5, 6));
  write_bytes(folder + "2.bin", record(9, '\xFF', 8, 9));
  const auto set = read_cifar10({folder + "1.bin", folder + "2.bin"});
  const ImageDataset& images = *set;
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
    return read_cifar10(paths)->checksum();
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

// ---- MNIST

std::string number(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(value >> shift & 0xFF));
  }
  return bytes;
}

std::string images_file(uint32_t count, uint32_t height, uint32_t width,
                        const std::string& pixels) {
  return number(0x803) + number(count) + number(height) + number(width) +
         pixels;
}

std::string labels_file(const std::string& labels) {
  return number(0x801) + number(static_cast<uint32_t>(labels.size())) + labels;
}

// Three images of 2x3 pixels.
const std::string kImages =
    images_file(3, 2, 3, "abcdefghijkl\xFF\xFE\xFD\xFC\xFB\xFA");
const std::string kLabels = labels_file(std::string("\7\0\x9", 3));

class MnistTest : public ::testing::Test {
 protected:
  std::string error(const std::string& images, const std::string& labels) {
    write_bytes(images_, images);
    write_bytes(labels_, labels);
    return value_error_of([this] { read_mnist(images_, labels_); });
  }

  const std::string folder_ = new_folder();
  const std::string images_ = folder_ + "images";
  const std::string labels_ = folder_ + "labels";
};

TEST_F(MnistTest, ReadsImagesAndLabelsInOrder) {
  write_bytes(images_, kImages);
  write_bytes(labels_, kLabels);
  const auto set = read_mnist(images_, labels_);
  const ImageDataset& images = *set;
  ASSERT_EQ(images.size(), 3);
  ASSERT_EQ(images.classes().size(), 10U);
  EXPECT_EQ(images.classes()[images.get(0).label], "7");
  EXPECT_EQ(images.get(1).label, 0);
  EXPECT_EQ(images.get(2).label, 9);
  const at::Tensor second = images.get(1).image;
  EXPECT_TRUE(
      at::equal(second, at::tensor({'g', 'h', 'i', 'j', 'k', 'l'}, at::kByte)
                            .view({1, 2, 3})
                            .repeat({3, 1, 1})));
  EXPECT_EQ(images.get(2).image[1][0][0].item<int>(), 255);
  // The three colours are the same plane.
  EXPECT_EQ(second.stride(0), 0);
  EXPECT_EQ(second.data_ptr(), images.get(1).image.data_ptr());
}

TEST_F(MnistTest, NamesFileAndNumbersOfWhatDoesNotFit) {
  EXPECT_THAT(
      error(kImages + "x", kLabels),
      AllOf(StartsWith(images_ + ": 19 bytes"), HasSubstr("[3, 2, 3]")));
  EXPECT_THAT(error(kImages, kLabels + "\1"),
              AllOf(StartsWith(labels_ + ": 4 bytes"), HasSubstr("[3]")));
  EXPECT_THAT(
      error(kImages, labels_file("\1\2")),
      StartsWith(labels_ + ": 2 labels, but " + images_ + " has 3 images"));
  EXPECT_THAT(error(kImages, labels_file("\1\2\x0A")),
              StartsWith(labels_ + ": label 2 is 10; there are labels 0 to 9"));
  EXPECT_THAT(error(kLabels, kLabels),
              StartsWith(images_ + ": 11 bytes; the header of images alone"));
  EXPECT_THAT(error(kImages, kImages),
              AllOf(StartsWith(labels_ + ": begins with the number 2051"),
                    HasSubstr("labels begins with 2049")));
  EXPECT_THAT(error(images_file(0, 2, 3, ""), labels_file("")),
              StartsWith(images_ + ": holds no images"));
  EXPECT_THAT(error("\x1F\x8B\x08 and more", kLabels),
              StartsWith(images_ + ": is compressed; gunzip it"));
  EXPECT_THAT(value_error_of([] { read_mnist("/no/such", "/no/such"); }),
              StartsWith("/no/such: cannot be read"));
}

// The products of these sizes overflow 64 bits to 0 or to the real number of
// bytes.
TEST_F(MnistTest, RefusesSizesThatNoNumberCounts) {
  const uint32_t half = 1U << 31;
  EXPECT_THAT(error(images_file(4, half, half, "x"), kLabels),
              HasSubstr("follow the header"));
  EXPECT_THAT(error(images_file(half, half, half, ""), kLabels),
              HasSubstr("follow the header"));
  EXPECT_THAT(error(images_file(0xFFFFFFFF, 0xFFFFFFFF, 1, "x"), kLabels),
              HasSubstr("follow the header"));
}

TEST_F(MnistTest, IsAnErrorWhereverAFileIsCutOff) {
  for (std::size_t size = 0; size < kImages.size(); ++size) {
    EXPECT_THAT(error(kImages.substr(0, size), kLabels),
                StartsWith(images_ + ": "))
        << size;
  }
  for (std::size_t size = 0; size < kLabels.size(); ++size) {
    EXPECT_THAT(error(kImages, kLabels.substr(0, size)),
                StartsWith(labels_ + ": "))
        << size;
  }
}

TEST_F(MnistTest, IsAnErrorWhicheverBitOfAHeaderIsFlipped) {
  for (std::size_t bit = 0; bit < 8 * 16; ++bit) {
    std::string damaged = kImages;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(error(damaged, kLabels), StartsWith(images_ + ": ")) << bit;
  }
  for (std::size_t bit = 0; bit < 8 * 8; ++bit) {
    std::string damaged = kLabels;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(error(kImages, damaged), StartsWith(labels_ + ": ")) << bit;
  }
}

TEST_F(MnistTest, IsFoundUnderEitherSpelling) {
  EXPECT_FALSE(find_mnist(folder_).has_value());
  write_bytes(folder_ + "train-images-idx3-ubyte", kImages);
  write_bytes(folder_ + "train-labels.idx1-ubyte", kLabels);
  write_bytes(folder_ + "t10k-images.idx3-ubyte", images_file(1, 1, 1, "x"));
  EXPECT_THAT(value_error_of([this] { find_mnist(folder_); }),
              StartsWith(folder_ + "t10k-labels-idx1-ubyte: there is no such"));
  write_bytes(folder_ + "t10k-labels-idx1-ubyte", labels_file("\4"));
  const auto split = find_mnist(folder_);
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->train->size(), 3);
  EXPECT_EQ(split->test->size(), 1);
  EXPECT_EQ(split->test->get(0).label, 4);
}

TEST_F(MnistTest, TellsToUnpackWhatIsCompressed) {
  write_bytes(folder_ + "train-images-idx3-ubyte.gz", "\x1F\x8B");
  EXPECT_THAT(value_error_of([this] { find_mnist(folder_); }),
              folder_ + "train-images-idx3-ubyte.gz: is compressed; gunzip it");
}

// ---- A folder in any of these formats

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
  return value_error_of([&] { open_images(folder, 0.2, 0); });
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
  std::filesystem::remove(root + "data_batch_1.bin");
  EXPECT_EQ(error_of_open(root),
            root +
                "data_batch_1.bin: there is no such file, but others of "
                "CIFAR-10 exist");
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
  EXPECT_THAT(error_of_open("/" + std::string(300, 'x')),
              HasSubstr("xxx: cannot be read: File name too long"));
  const std::string root = new_folder();
  write_classes(root + "train/", 2, 1);
  EXPECT_THAT(error_of_open(root), HasSubstr("neither test/ nor val/"));
  write_classes(root + "val/", 3, 1);
  EXPECT_THAT(error_of_open(root),
              HasSubstr("train has 2 classes, val has 3, and only one of "
                        "them has 'class2'; both need"));
  const std::string single = new_folder();
  write_classes(single, 3, 1);
  EXPECT_EQ(error_of_open(single),
            "held_out is 0.2 of 3 images in 3 classes, which leaves 3 for "
            "training and 0 for testing; each needs at least one. Give another "
            "fraction, or more images per class");
}

}  // namespace
}  // namespace gpipe::data
