// Writes image files for tests with the libraries that read them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace gpipe::data {

// Writes a PNG file. `image`: uint8, [3, height, width]; with alpha as a fourth
// plane, a transparent one.
void write_png(const std::string& path, const at::Tensor& image);
// Writes a grey PNG file with 16 bits per pixel and without a colour space.
// `image`: int32, [height, width], values from 0 to 65535.
void write_png_of_16_bits(const std::string& path, const at::Tensor& image);
// Writes a JPEG file. `image`: uint8, [3, height, width]. `quality`: 0 to 100.
void write_jpeg(const std::string& path, const at::Tensor& image,
                int quality = 100);

// Returns an image of one colour, uint8 [3, height, width].
at::Tensor plain_image(int64_t height, int64_t width, uint8_t red,
                       uint8_t green, uint8_t blue);

}  // namespace gpipe::data
