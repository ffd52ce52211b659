#include "training/data/image.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/testing/files.h"
#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::read_bytes;
using gpipe::testing::value_error_of;
using gpipe::testing::write_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- Files

// Returns an image in which each pixel has other values than its neighbours.
at::Tensor gradient_image(int64_t height, int64_t width) {
  return at::arange(3 * height * width).view({3, height, width}).to(at::kByte);
}

std::string error_of_image(const std::string& path) {
  return value_error_of([&] { read_image(path); });
}

TEST(ImageTest, PngKeepsEveryPixel) {
  const std::string path = new_folder() + "a.png";
  const at::Tensor image = gradient_image(5, 7);
  write_png(path, image);
  EXPECT_TRUE(at::equal(read_image(path), image));
}

TEST(ImageTest, JpegKeepsPlainColours) {
  const std::string path = new_folder() + "a.jpg";
  const at::Tensor image = plain_image(17, 9, 200, 100, 50);
  write_jpeg(path, image);
  const at::Tensor read = read_image(path);
  ASSERT_EQ(read.sizes(), image.sizes());
  EXPECT_EQ(read.scalar_type(), at::kByte);
  const at::Tensor difference = read.to(at::kInt) - image.to(at::kInt);
  EXPECT_LE(difference.abs().max().item<int>(), 2);
}

TEST(ImageTest, TellsTheKindByContentAndNotByName) {
  const std::string path = new_folder() + "png.jpg";
  const at::Tensor image = gradient_image(4, 4);
  write_png(path, image);
  EXPECT_TRUE(at::equal(read_image(path), image));
}

TEST(ImageTest, Of16BitsTheUpperOnesAreTaken) {
  const std::string path = new_folder() + "a.png";
  write_png_of_16_bits(
      path, at::tensor({0, 0x8000, 0xffff, 1}, at::kInt).view({1, 4}));
  EXPECT_TRUE(
      at::equal(read_image(path),
                at::tensor({0, 128, 255, 0}, at::kByte).expand({3, 1, 4})));
  EXPECT_EQ(max_of_16_bits(path), 0xffff);
  write_png_of_16_bits(path, at::tensor({0, 1, 7, 2}, at::kInt).view({2, 2}));
  EXPECT_EQ(max_of_16_bits(path), 7);
  write_png(path, plain_image(2, 2, 7, 7, 7));
  EXPECT_EQ(max_of_16_bits(path), 0);
}

TEST(ImageTest, TransparencyIsDrawnOnBlack) {
  const std::string path = new_folder() + "a.png";
  const at::Tensor alpha = at::tensor({0, 51, 128, 255}, at::kByte);
  const at::Tensor colour = at::full({4}, 200, at::kByte);
  write_png(path, at::stack({colour, colour, colour, alpha}).view({4, 1, 4}));
  EXPECT_TRUE(
      at::equal(read_image(path),
                at::tensor({0, 40, 100, 200}, at::kByte).expand({3, 1, 4})));
}

// As PIL and torchvision read them. The chunk says that values are linear
// light.
TEST(ImageTest, PixelsOfAPngDoNotDependOnItsGamma) {
  const std::string path = new_folder() + "a.png";
  const at::Tensor image = gradient_image(5, 7);
  write_png(path, image);
  std::string bytes = read_bytes(path);
  constexpr std::size_t kAfterHeader = 8 + 25;
  bytes.insert(kAfterHeader, std::string("\0\0\0\x04gAMA\0\x01\x86\xa0"
                                         "\x31\xe8\x96\x5f",
                                         16));
  write_bytes(path, bytes);
  EXPECT_TRUE(at::equal(read_image(path), image));
}

TEST(ImageTest, NamesAFileThatIsNotThere) {
  EXPECT_THAT(error_of_image("/no/such.png"), HasSubstr("/no/such.png"));
}

TEST(ImageTest, NamesAFileOfAnotherKind) {
  const std::string path = new_folder() + "text.png";
  write_bytes(path, "not an image");
  EXPECT_THAT(error_of_image(path),
              AllOf(HasSubstr(path), HasSubstr("neither a JPEG nor a PNG")));
}

TEST(ImageTest, NamesATruncatedFileAtAnyLength) {
  const std::string folder = new_folder();
  write_png(folder + "a.png", gradient_image(24, 24));
  write_jpeg(folder + "a.jpg", gradient_image(24, 24));
  for (const char* name : {"a.png", "a.jpg"}) {
    const std::string bytes = read_bytes(folder + name);
    const std::string path = folder + "short_" + name;
    // A PNG is complete without its last chunk of 12 bytes, and a JPEG without
    // its end marker of 2 bytes.
    for (size_t size = 1; size + 16 < bytes.size(); size += 7) {
      write_bytes(path, bytes.substr(0, size));
      EXPECT_THAT(error_of_image(path), HasSubstr(path)) << size;
    }
  }
}

TEST(ImageTest, RefusesAHeaderThatClaimsTooManyPixels) {
  const std::string path = new_folder() + "a.jpg";
  write_jpeg(path, plain_image(8, 8, 1, 2, 3));
  std::string bytes = read_bytes(path);
  const size_t frame = bytes.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  bytes.replace(frame + 5, 4, "\xFF\xDC\xFF\xDC");  // height and width
  write_bytes(path, bytes);
  EXPECT_THAT(error_of_image(path),
              AllOf(HasSubstr(path), HasSubstr("65500x65500 pixels")));
}

// ---- Pixels

TEST(PixelsTest, CutsAWindowOutOfEveryPlane) {
  const at::Tensor planes = at::arange(24).view({2, 3, 4});
  EXPECT_TRUE(at::equal(cut(planes, {1, 2, 2, 1}),
                        at::tensor({6, 10, 18, 22}).view({2, 2, 1})));
  EXPECT_TRUE(cut(planes, {1, 2, 2, 1}).is_alias_of(planes));
}

TEST(PixelsTest, KeepsValuesInTheSameSize) {
  const at::Tensor bytes = at::tensor({0, 1, 254, 255}, at::kByte);
  EXPECT_TRUE(
      at::equal(resize(bytes.view({1, 2, 2}), 2, 2),
                at::tensor({0.0F, 1.0F, 254.0F, 255.0F}).view({1, 2, 2})));
}

TEST(PixelsTest, AveragesWhatShrinks) {
  // When the size is halved, four pixels in a row have the weights 1, 3, 3, 1,
  // and three at the edge 3, 3, 1.
  const at::Tensor row = at::tensor({56, 0, 0, 0, 0, 0, 0, 112}, at::kByte);
  EXPECT_TRUE(
      at::allclose(resize(row.expand({3, 8, 8}), 4, 4),
                   at::tensor({24.0F, 0.0F, 0.0F, 48.0F}).expand({3, 4, 4})));
}

TEST(PixelsTest, InterpolatesWhatGrows) {
  const at::Tensor mask = at::tensor({0, 1}).to(at::kBool);
  EXPECT_TRUE(
      at::allclose(resize(mask.expand({1, 2, 2}), 4, 4),
                   at::tensor({0.0F, 0.25F, 0.75F, 1.0F}).expand({1, 4, 4})));
}

TEST(PixelsTest, RefusesWhatIsNoImage) {
  check_image(at::zeros({3, 1, 1}, at::kByte));
  for (const at::Tensor& image :
       {at::zeros({3, 2, 2}), at::zeros({1, 2, 2}, at::kByte),
        at::zeros({3, 2}, at::kByte), at::zeros({3, 0, 2}, at::kByte)}) {
    EXPECT_THAT(value_error_of([&] { check_image(image); }),
                HasSubstr("expected an image of bytes, [3, height, width]"));
  }
  check_size(1);
  EXPECT_EQ(value_error_of([] { check_size(0); }), "cannot make images of 0x0");
}

}  // namespace
}  // namespace gpipe::data
