#include "weights/testing/fuzz_checks.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "weights/testing/allocation_meter.h"

namespace gpipe::testing {
namespace {

ReaderCounts counts;

void check_at_most(const char* what, int64_t value, int64_t bound,
                   std::size_t input_size) {
  if (value <= bound) return;
  std::fprintf(stderr, "%s: %lld bytes for an input of %zu bytes\n", what,
               static_cast<long long>(value), input_size);
  std::abort();
}

// Through memcpy(), which ASan watches also where LibTorch is not compiled with
// it.
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

void check_reader(std::size_t input_size,
                  const std::function<StateDict()>& read) {
  const auto size = static_cast<int64_t>(input_size);
  const AllocationMeter meter;
  try {
    const StateDict dict = read();
    for (const auto& item : dict) touch(item.value());
    ++counts.read;
  } catch (const c10::ValueError&) {
    ++counts.refused;
  }
  check_at_most("largest allocation", meter.largest(), 16 * size + (1 << 13),
                input_size);
  check_at_most("memory held", meter.peak(), 160 * size + (1 << 16),
                input_size);
}

ReaderCounts reader_counts() { return counts; }

}  // namespace gpipe::testing
