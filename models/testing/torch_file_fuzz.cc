// Fuzzes read_torch_file() and map_torch_file() with any bytes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "gpipe/testing/fuzz_check.h"
#include "models/testing/fuzz_reader.h"
#include "models/weights/torch_file.h"

// Turns LeakSanitizer off. LibTorch's reader leaks if its constructor throws,
// and libFuzzer would look for leaks after each input.
extern "C" int __lsan_is_turned_off() { return 1; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  // LibTorch's reader needs a path.
  static const int file = memfd_create("torch_file", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  gpipe::testing::fuzz_check(
      ftruncate(file, 0) == 0 &&
          pwrite(file, data, size, /*offset=*/0) == static_cast<ssize_t>(size),
      "the file can be written");
  for (const auto read :
       {gpipe::read_torch_file, gpipe::internal::map_torch_file}) {
    gpipe::testing::fuzz_reader(size, [&] { return read(path, /*entry=*/""); });
  }
  return 0;
}
