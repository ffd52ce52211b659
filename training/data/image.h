// Decodes image files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace gpipe::data {

// Returns whether the extension is .jpg, .jpeg or .png, in upper or lower case,
// and the file is not hidden (by a dot in front).
bool has_image_name(const std::filesystem::path& path);

// Decodes a JPEG or PNG file. Returns uint8 [3, height, width]: red, green,
// blue. Grey, palette and CMYK files become RGB. Transparency is drawn on
// black. Values of 16 bits are rounded to their upper 8 bits. The format is
// recognised by the first bytes, since file names are often wrong.
//
// Throws c10::ValueError with the path if the file cannot be read, has another
// format, is broken or truncated, or has more than 2^27 pixels. Thread-safe.
at::Tensor read_image(const std::string& path);

// Decodes a file that is already in memory, like read_image(). `name`: the name
// used in errors.
at::Tensor decode_image(std::string_view bytes, const std::string& name);

// Returns the largest value in a PNG file with 16 bits per value, or 0 for
// other files. read_image() may round such values to 0. Same errors as
// read_image(). Thread-safe.
int64_t max_of_16_bits(const std::string& path);

}  // namespace gpipe::data
