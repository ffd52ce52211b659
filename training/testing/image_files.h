// Writes image files for tests with the libraries that read them, and helps
// with other files of tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace gpipe::data {

// Writes a PNG file. `image`: uint8, [3, height, width].
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

void write_bytes(const std::string& path, const std::string& bytes);
std::string read_bytes(const std::string& path);

// Returns the text of the c10::ValueError that `body` throws, or "no error".
// Other exceptions pass through.
std::string error_of(const std::function<void()>& body);

// Creates an empty folder for the running test and returns its path, which ends
// with "/".
std::string new_folder();

}  // namespace gpipe::data
