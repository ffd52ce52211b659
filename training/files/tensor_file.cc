#include "training/files/tensor_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "gpipe/base/crc32c.h"
#include "models/weights/safetensors_file.h"

namespace gpipe::internal {
namespace {

[[noreturn]] void damage(const std::string& name, const std::string& what) {
  throw Damage(name + " " + what);
}

// Runs `body` and reports its c10::Error as Damage: a file that cannot be read,
// or that has no valid header, is damaged. `body` must not allocate tensors,
// since lack of memory is not damage.
template <typename Body>
auto reading(const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw Damage(error.what_without_backtrace());
  }
}

SafetensorsHeader read_header(const FileReader& file,
                              const TensorFileRecord& record) {
  std::string bytes(record.header_size, '\0');
  reading([&] { file.read_at(0, bytes.data(), bytes.size()); });
  if (crc32c(bytes.data(), bytes.size()) != record.header_checksum) {
    damage(record.name, "has a changed header");
  }
  return reading([&] {
    return parse_safetensors_header(
        std::string_view(bytes).substr(kSafetensorsLengthBytes),
        record.size - record.header_size);
  });
}

}  // namespace

TensorFileRecord write_tensor_file(const std::string& folder,
                                   const std::string& name,
                                   const StateDict& tensors) {
  const SafetensorsLayout layout = lay_out(tensors);
  TensorFileRecord record;
  record.name = name;
  record.header_size = layout.start.size();
  record.header_checksum = crc32c(layout.start.data(), layout.start.size());
  FileWriter file(folder + "/" + name);
  file.write(layout.start.data(), layout.start.size());
  for (const std::size_t k : layout.order) {
    const at::Tensor tensor = as_written(tensors[k].value());
    const void* const bytes = tensor.const_data_ptr();
    const SafetensorsEntry& entry = layout.header.entries[k];
    record.tensors.push_back(
        {entry.name, entry.dtype, entry.sizes, crc32c(bytes, tensor.nbytes())});
    file.write(bytes, tensor.nbytes());
  }
  file.finish();
  record.size = file.size();
  return record;
}

StateDict read_tensor_file(
    const std::string& folder, const TensorFileRecord& record,
    const std::function<bool(const std::string&)>& wanted) {
  const auto file = reading(
      [&] { return std::make_unique<FileReader>(folder + "/" + record.name); });
  if (file->size() != record.size) {
    damage(record.name, "has " + std::to_string(file->size()) + " bytes, " +
                            std::to_string(record.size) + " expected");
  }
  const SafetensorsHeader header = read_header(*file, record);
  std::map<std::string, const TensorRecord*> records;
  for (const TensorRecord& each : record.tensors) records[each.name] = &each;
  StateDict tensors;
  for (const SafetensorsEntry& entry : header.entries) {
    if (!wanted(entry.name)) continue;
    const auto found = records.find(entry.name);
    if (found == records.end() || found->second->dtype != entry.dtype ||
        found->second->sizes != entry.sizes) {
      damage(record.name, "has a different '" + entry.name + "'");
    }
    at::Tensor tensor = at::empty(entry.sizes, at::TensorOptions(entry.dtype));
    void* const bytes = tensor.mutable_data_ptr();
    const std::size_t size = tensor.nbytes();
    reading(
        [&] { file->read_at(record.header_size + entry.begin, bytes, size); });
    if (crc32c(bytes, size) != found->second->checksum) {
      damage(record.name, "has changed in '" + entry.name + "'");
    }
    tensors.insert(entry.name, std::move(tensor));
  }
  return tensors;
}

}  // namespace gpipe::internal
