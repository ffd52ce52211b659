#include "models/weights/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "models/weights/files.h"
#include "models/weights/formats.h"
#include "models/weights/safetensors_file.h"

namespace gpipe {
namespace {

// Returns the tensors and metadata of a header. `read(entry, to, size)`: copies
// the bytes of a tensor. `wanted`: see read_safetensors(); null: all tensors.
template <typename Read>
Safetensors contents(
    internal::SafetensorsHeader header, const Read& read,
    const std::function<bool(const std::string&)>& wanted = nullptr) {
  Safetensors result;
  result.metadata = std::move(header.metadata);
  result.tensors.reserve(header.entries.size());
  for (const internal::SafetensorsEntry& entry : header.entries) {
    const bool is_wanted = !wanted || wanted(entry.name);
    at::Tensor tensor =
        at::empty(entry.sizes, at::TensorOptions(entry.dtype)
                                   .device(is_wanted ? at::kCPU : at::kMeta));
    if (is_wanted && entry.end > entry.begin) {
      read(entry, tensor.mutable_data_ptr(), entry.end - entry.begin);
    }
    result.tensors.insert(entry.name, std::move(tensor));
  }
  return result;
}

}  // namespace

Safetensors read_safetensors(
    const std::string& path,
    const std::function<bool(const std::string&)>& wanted) {
  const internal::SafetensorsFile file(path);
  return contents(
      file.header(),
      [&](const internal::SafetensorsEntry& entry, void* to, std::size_t size) {
        file.read(entry, 0, to, size);
      },
      wanted);
}

Safetensors parse_safetensors(const void* bytes, std::size_t size,
                              const std::string& source) {
  const auto read_at = [bytes](uint64_t offset, void* to, std::size_t count) {
    std::memcpy(to, static_cast<const char*>(bytes) + offset, count);
  };
  internal::SafetensorsStart start = internal::with_prefix(source + ": ", [&] {
    return internal::read_safetensors_start(size, read_at);
  });
  return contents(std::move(start.header),
                  [&](const internal::SafetensorsEntry& entry, void* to,
                      std::size_t count) {
                    read_at(start.data_begin + entry.begin, to, count);
                  });
}

void write_safetensors(const std::string& path, const StateDict& tensors,
                       const SafetensorsMetadata& metadata) {
  const internal::SafetensorsLayout layout =
      internal::lay_out(tensors, metadata);
  internal::AtomicFile file(path);
  internal::write_laid_out(file, tensors, layout);
  file.commit();
}

std::string safetensors_bytes(const StateDict& tensors,
                              const SafetensorsMetadata& metadata) {
  const internal::SafetensorsLayout layout =
      internal::lay_out(tensors, metadata);
  std::string text(layout.start);
  for (const std::size_t k : layout.order) {
    const at::Tensor tensor = internal::as_written(tensors[k].value());
    text.append(static_cast<const char*>(tensor.const_data_ptr()),
                tensor.nbytes());
  }
  return text;
}

}  // namespace gpipe
