#include "models/weights/safetensors_file.h"

#include <algorithm>

#include "models/weights/in_quotes.h"
#include "models/weights/safetensors_layout.h"

namespace gpipe::internal {
namespace {

// Runs `body`, which must not allocate tensors. Turns an error of the file
// system into a c10::ValueError.
template <typename Body>
auto as_value_error(const Body& body) {
  try {
    return body();
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, error.what_without_backtrace());
  }
}

SafetensorsStart read_start(const FileReader& reader) {
  try {
    return read_safetensors_start(
        reader.size(), [&](uint64_t offset, void* to, std::size_t size) {
          reader.read_at(offset, to, size);
        });
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, reader.path(), ": ",
                      error.what_without_backtrace());
  }
}

}  // namespace

SafetensorsStart read_safetensors_start(uint64_t file_bytes,
                                        const ReadAt& read_at) {
  TORCH_CHECK_VALUE(file_bytes >= kSafetensorsLengthBytes, "has ", file_bytes,
                    " bytes, too few for a header");
  uint8_t bytes[kSafetensorsLengthBytes];
  read_at(0, bytes, sizeof bytes);
  uint64_t length = 0;
  for (std::size_t k = 0; k < sizeof bytes; ++k) {
    length |= uint64_t{bytes[k]} << (8 * k);
  }
  const uint64_t rest = file_bytes - kSafetensorsLengthBytes;
  TORCH_CHECK_VALUE(length <= std::min(rest, kMaxSafetensorsHeader),
                    "should begin with a header of ", length,
                    " bytes, but there are ", rest, ", and ",
                    kMaxSafetensorsHeader, " are the most that are allowed");

  std::string json(length, '\0');
  read_at(kSafetensorsLengthBytes, json.data(), json.size());
  return {parse_safetensors_header(json, rest - length),
          kSafetensorsLengthBytes + length};
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : reader_(as_value_error([&] { return FileReader(path); })),
      start_(as_value_error([&] { return read_start(reader_); })) {}

void SafetensorsFile::read(const SafetensorsEntry& entry, uint64_t offset,
                           void* to, std::size_t size) const {
  try {
    reader_.read_at(start_.data_begin + entry.begin + offset, to, size);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, in_quotes(entry.name), " of ",
                      error.what_without_backtrace());
  }
}

}  // namespace gpipe::internal
