#include "benchmarks/harness/checksum.h"

namespace gpipe::benchmarks {
namespace {

// The 64-bit FNV-1a hash: http://www.isthe.com/chongo/tech/comp/fnv
class Fnv1a {
 public:
  void add(const void* data, size_t bytes) {
    const auto* in = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) {
      hash_ = (hash_ ^ in[i]) * 0x100000001B3;
    }
  }
  void add(int64_t value) { add(&value, sizeof(value)); }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace

uint64_t checksum(const std::map<std::string, at::Tensor>& tensors) {
  Fnv1a hash;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
    hash.add(name.data(), name.size());
    hash.add(static_cast<int64_t>(values.scalar_type()));
    hash.add(values.dim());
    for (const int64_t size : values.sizes()) hash.add(size);
    hash.add(values.const_data_ptr(), values.nbytes());
  }
  return hash.hash();
}

}  // namespace gpipe::benchmarks
