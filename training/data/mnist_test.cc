#include "training/data/mnist.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
    return error_of([this] { Mnist(images_, labels_); });
  }

  const std::string folder_ = new_folder();
  const std::string images_ = folder_ + "images";
  const std::string labels_ = folder_ + "labels";
};

TEST_F(MnistTest, ReadsImagesAndLabelsInOrder) {
  write_bytes(images_, kImages);
  write_bytes(labels_, kLabels);
  const Mnist images(images_, labels_);
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
  EXPECT_THAT(error_of([] { Mnist("/no/such", "/no/such"); }),
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
  EXPECT_THAT(error_of([this] { find_mnist(folder_); }),
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
  EXPECT_THAT(error_of([this] { find_mnist(folder_); }),
              folder_ + "train-images-idx3-ubyte.gz: is compressed; gunzip it");
}

}  // namespace
}  // namespace gpipe::data
