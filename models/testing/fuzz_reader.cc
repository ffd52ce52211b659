#include "models/testing/fuzz_reader.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "gpipe/testing/fuzz_check.h"

namespace gpipe::testing {
namespace {

// Reads the first and the last element with memcpy(). ASan checks memcpy() even
// where LibTorch is not compiled with ASan.
void touch(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  int64_t last = 0;
  for (int64_t k = 0; k < tensor.dim(); ++k) {
    last += (tensor.size(k) - 1) * tensor.stride(k);
  }
  const auto* first = static_cast<const char*>(tensor.const_data_ptr());
  const std::size_t element = tensor.element_size();
  volatile char sink = 0;
  char bytes[16];
  for (const int64_t index : {int64_t{0}, last}) {
    std::memcpy(bytes, first + index * static_cast<int64_t>(element), element);
    sink = bytes[0];
  }
  (void)sink;
}

}  // namespace

void fuzz_reader(std::size_t input_size,
                 const std::function<StateDict()>& read) {
  fuzz_parser<c10::ValueError>(input_size, {}, read, [](const StateDict& dict) {
    for (const auto& item : dict) touch(item.value());
  });
}

std::string fuzz_file(const uint8_t* data, std::size_t size) {
  static const int file = memfd_create("fuzz_file", MFD_CLOEXEC);
  fuzz_check(
      ftruncate(file, 0) == 0 &&
          pwrite(file, data, size, /*offset=*/0) == static_cast<ssize_t>(size),
      "the file can be written");
  return "/proc/self/fd/" + std::to_string(file);
}

}  // namespace gpipe::testing
