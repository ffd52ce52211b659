// Fuzzes parse_safetensors() with any bytes.
#include <algorithm>
#include <string_view>
#include <utility>

#include "gpipe/testing/fuzz_check.h"
#include "models/testing/fuzz_reader.h"
#include "models/weights/safetensors.h"
#include "models/weights/safetensors_file.h"

namespace {

using gpipe::testing::fuzz_check;

constexpr std::size_t kLengthBytes = 8;

// Checks that the header of a readable file stays the same when it is written
// and read again.
void check_header(std::string_view file) {
  std::size_t length = 0;
  for (std::size_t k = kLengthBytes; k-- > 0;) {
    length = length << 8 | static_cast<uint8_t>(file[k]);
  }
  const std::size_t bytes = file.size() - kLengthBytes - length;
  const auto header = gpipe::internal::parse_safetensors_header(
      file.substr(kLengthBytes, length), bytes);
  const auto again = gpipe::internal::parse_safetensors_header(
      gpipe::internal::safetensors_header_text(header), bytes);
  const auto same = [](const auto& a, const auto& b) {
    return a.name == b.name && a.dtype == b.dtype && a.sizes == b.sizes &&
           a.begin == b.begin && a.end == b.end;
  };
  fuzz_check(again.metadata == header.metadata &&
                 std::equal(again.entries.begin(), again.entries.end(),
                            header.entries.begin(), header.entries.end(), same),
             "a header is read as it was written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  bool can_be_read = false;
  gpipe::testing::fuzz_reader(size, [&] {
    gpipe::Safetensors file = gpipe::parse_safetensors(data, size);
    std::size_t bytes = 0;
    for (const auto& item : file.tensors) bytes += item.value().nbytes();
    fuzz_check(bytes <= size, "tensors stand for bytes that are there");
    can_be_read = true;
    return std::move(file.tensors);
  });
  if (can_be_read) check_header(gpipe::testing::fuzz_text(data, size));
  return 0;
}

// Corrects the header's length in every second input: up to the last brace.
extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size,
                                               std::size_t max_size,
                                               unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  const std::size_t last = gpipe::testing::fuzz_text(data, size).rfind('}');
  if (seed % 2 != 0 || last == std::string_view::npos || last < kLengthBytes) {
    return size;
  }
  for (std::size_t k = 0; k < kLengthBytes; ++k) {
    data[k] = static_cast<uint8_t>((last + 1 - kLengthBytes) >> (8 * k));
  }
  return size;
}
