// Fuzzes Pickle and tensors_of() with any bytes, with small storages.
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <string>

#include "gpipe/testing/fuzz_check.h"
#include "models/testing/fuzz_reader.h"
#include "models/weights/pickle.h"
#include "models/weights/pickled_weights.h"

namespace {

// Returns a storage of the requested size, but of at most 1 KiB.
c10::Storage small_storage(const std::string&, int64_t bytes) {
  return {c10::Storage::use_byte_size_t(), std::min<int64_t>(bytes, 1 << 10),
          c10::GetCPUAllocator(),
          /*resizable=*/false};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gpipe::testing::fuzz_reader(size, [&] {
    const gpipe::internal::Pickle pickle(gpipe::testing::fuzz_text(data, size));
    return gpipe::internal::tensors_of(pickle.value(), small_storage,
                                       size % 2 == 0 ? "" : "a/b/0");
  });
  return 0;
}

// Appends a STOP to every second input that has lost its own.
extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size,
                                               std::size_t max_size,
                                               unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  const bool stops = size > 0 && data[size - 1] == '.';
  if (seed % 2 == 0 && !stops && size < max_size) data[size++] = '.';
  return size;
}
