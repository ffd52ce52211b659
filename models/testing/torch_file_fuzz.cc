// Fuzzes read_torch_file() and map_torch_file() with any bytes.
#include <string>

#include "models/testing/fuzz_reader.h"
#include "models/weights/torch_file.h"

// Turns LeakSanitizer off. LibTorch's reader leaks if its constructor throws,
// and libFuzzer would look for leaks after each input.
extern "C" int __lsan_is_turned_off() { return 1; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string path = gpipe::testing::fuzz_file(data, size);
  for (const auto read :
       {gpipe::read_torch_file, gpipe::internal::map_torch_file}) {
    gpipe::testing::fuzz_reader(size, [&] { return read(path, /*entry=*/""); });
  }
  return 0;
}
