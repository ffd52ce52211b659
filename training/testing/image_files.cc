#include "training/testing/image_files.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <vector>

// jpeglib.h requires that FILE and size_t are declared before it.
#include <jpeglib.h>
#include <png.h>

namespace gpipe::data {

void write_png(const std::string& path, const at::Tensor& image) {
  const at::Tensor pixels = image.permute({1, 2, 0}).contiguous();
  png_image info{};
  info.version = PNG_IMAGE_VERSION;
  info.height = static_cast<png_uint_32>(image.size(1));
  info.width = static_cast<png_uint_32>(image.size(2));
  info.format = image.size(0) == 4 ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
  const bool written = png_image_write_to_file(
      &info, path.c_str(), /*convert_to_8bit=*/0, pixels.const_data_ptr(),
      /*row_stride=*/0, /*colormap=*/nullptr);
  TORCH_CHECK(written, path, ": ", info.message);
}

void write_png_of_16_bits(const std::string& path, const at::Tensor& image) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  TORCH_CHECK(file != nullptr, path, ": cannot be written");
  png_structp png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.size(1)),
               static_cast<png_uint_32>(image.size(0)), /*bit_depth=*/16,
               PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int64_t y = 0; y < image.size(0); ++y) {
    std::vector<uint8_t> row;
    for (int64_t x = 0; x < image.size(1); ++x) {
      const int value = image[y][x].item<int>();
      row.push_back(static_cast<uint8_t>(value >> 8));
      row.push_back(static_cast<uint8_t>(value));
    }
    png_write_row(png, row.data());
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

void write_jpeg(const std::string& path, const at::Tensor& image, int quality) {
  const at::Tensor pixels = image.permute({1, 2, 0}).contiguous();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  TORCH_CHECK(file != nullptr, path, ": cannot be written");
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, file);
  info.image_height = static_cast<JDIMENSION>(image.size(1));
  info.image_width = static_cast<JDIMENSION>(image.size(2));
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  for (int64_t y = 0; y < image.size(1); ++y) {
    auto* row = const_cast<uint8_t*>(pixels.const_data_ptr<uint8_t>()) +
                y * image.size(2) * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

at::Tensor plain_image(int64_t height, int64_t width, uint8_t red,
                       uint8_t green, uint8_t blue) {
  at::Tensor image = at::empty({3, height, width}, at::kByte);
  image.select(0, 0).fill_(red);
  image.select(0, 1).fill_(green);
  image.select(0, 2).fill_(blue);
  return image;
}

}  // namespace gpipe::data
