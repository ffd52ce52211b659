// Image files to tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace gpipe::data {

// Whether a file is called as an image is: .jpg, .jpeg or .png, in letters of
// any size, and not hidden (by a dot in front).
bool has_image_name(const std::filesystem::path& path);

// Decodes a JPEG or PNG file: uint8, [3, height, width], red, green, blue.
// Grey, palette and CMYK files become colour; transparency is drawn on black;
// of 16 bits the upper ones are taken, rounded.
// The kind is told from the first bytes, since names are often wrong.
//
// Errors (c10::ValueError, naming the file): cannot be read, of another kind,
// broken, ends early, or larger than 2^27 pixels.
// Threads: any; calls do not share state.
at::Tensor read_image(const std::string& path);

// The same for a file that is in memory already; `name` is for errors.
at::Tensor decode_image(std::string_view bytes, const std::string& name);

// The largest value in a PNG file with 16 bits for each, of which read_image()
// may leave nothing; 0 for other files. Errors: as those.
int64_t max_of_16_bits(const std::string& path);

}  // namespace gpipe::data
