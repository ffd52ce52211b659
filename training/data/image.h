// Images: files, crops and sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace gpipe::data {

// ---- Files

// Returns whether the extension is .jpg, .jpeg or .png, in upper or lower case,
// and the file is not hidden (by a dot in front).
bool has_image_name(const std::filesystem::path& path);

// Throws c10::ValueError with the path and the reason of an error that occurred
// while `folder` was listed. Thread-safe.
[[noreturn]] void refuse_folder(const std::string& folder,
                                const std::filesystem::filesystem_error& error);

// Decodes a JPEG or PNG file. Returns uint8 [3, height, width]: red, green,
// blue. Grey, palette and CMYK files become RGB. Transparency is drawn on
// black. Values of 16 bits are rounded to their upper 8 bits. The format is
// recognised by the first bytes, since file names are often wrong.
//
// Throws c10::ValueError with the path if the file cannot be read, has another
// format, is broken or truncated, or has more than 2^27 pixels. Thread-safe.
at::Tensor read_image(const std::string& path);

// Returns the largest value in a PNG file with 16 bits per value, or 0 for
// other files. read_image() may round such values to 0. Same errors as
// read_image(). Thread-safe.
int64_t max_of_16_bits(const std::string& path);

// ---- Pixels of images and masks. All functions are thread-safe.

// A rectangle of an image, in pixels.
struct Window {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

// Returns a view of the window. `planes`: [channels, height, width]. The window
// must lie inside of the planes.
at::Tensor cut(const at::Tensor& planes, const Window& window);

// Resizes planes by bilinear interpolation. `planes`: uint8 or bool, [channels,
// any height, any width]. Returns float [channels, `height`, `width`] with
// values on the same scale. When it shrinks the planes, a pixel is the mean,
// weighted by a triangle, of all its source pixels. Values do not change if the
// size is the same.
at::Tensor resize(const at::Tensor& planes, int64_t height, int64_t width);

// Throws c10::ValueError unless `image` is uint8 [3, height, width] and not
// empty.
void check_image(const at::Tensor& image);

// Throws c10::ValueError if `size`, the side of images in pixels, is below 1.
void check_size(int64_t size);

}  // namespace gpipe::data
