// Image files for tests, written by the same libraries that read them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace gpipe::data {

// `image`: uint8, [3, height, width].
void write_png(const std::string& path, const at::Tensor& image);
void write_jpeg(const std::string& path, const at::Tensor& image,
                int quality = 100);

// uint8, [3, height, width], of one colour.
at::Tensor plain_image(int64_t height, int64_t width, uint8_t red,
                       uint8_t green, uint8_t blue);

void write_bytes(const std::string& path, const std::string& bytes);
std::string read_bytes(const std::string& path);

// A new empty folder for the test that is running; its path ends with "/".
std::string new_folder();

}  // namespace gpipe::data
