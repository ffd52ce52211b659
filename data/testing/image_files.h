// Image files for tests, written by the same libraries that read them; and what
// else tests with files need.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace gpipe::data {

// `image`: uint8, [3, height, width].
void write_png(const std::string& path, const at::Tensor& image);
// A grey one with 16 bits per pixel, which does not say what they mean.
// `image`: int32, [height, width], from 0 to 65535.
void write_png_of_16_bits(const std::string& path, const at::Tensor& image);
void write_jpeg(const std::string& path, const at::Tensor& image,
                int quality = 100);

// uint8, [3, height, width], of one colour.
at::Tensor plain_image(int64_t height, int64_t width, uint8_t red,
                       uint8_t green, uint8_t blue);

void write_bytes(const std::string& path, const std::string& bytes);
std::string read_bytes(const std::string& path);

// The text of the c10::ValueError that `body` throws, or "no error".
std::string error_of(const std::function<void()>& body);

// A new empty folder for the test that is running; its path ends with "/".
std::string new_folder();

}  // namespace gpipe::data
