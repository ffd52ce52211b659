#include "training/data/checksum.h"

#include "gpipe/base/crc32c.h"

namespace gpipe::data {

uint32_t checksum_of(const at::Tensor& tensor, uint32_t so_far) {
  const at::Tensor bytes = tensor.cpu().contiguous();
  return internal::crc32c(bytes.const_data_ptr(), bytes.nbytes(), so_far);
}

uint32_t checksum_of(const std::vector<int64_t>& numbers, uint32_t so_far) {
  return internal::crc32c(numbers.data(), numbers.size() * sizeof(int64_t),
                          so_far);
}

uint32_t checksum_of(const std::string& name, uint32_t so_far) {
  return internal::crc32c(name.c_str(), name.size() + 1, so_far);
}

}  // namespace gpipe::data
