#include "models/weights/torch_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "models/weights/files.h"
#include "models/weights/formats.h"
#include "models/weights/pickle.h"
#include "models/weights/pickled_weights.h"
#include "models/weights/zip.h"

namespace gpipe {
namespace {

using caffe2::serialize::PyTorchStreamWriter;

// ---- Reading

// Checks the first bytes of a file.
void check_start(const std::string& path) {
  const std::string start = internal::read_start(path, 32);
  // Before 1.6, files began with the pickled integer 0x1950a86a20f9469cfc6c,
  // after the protocol of pickle and, from protocol 4 on, the size of a frame.
  constexpr std::string_view kMagic =
      "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8";
  TORCH_CHECK_VALUE(
      !start.starts_with('\x80') || start.find(kMagic) == std::string::npos,
      "is of the format before PyTorch 1.6. Save it again with a recent one: "
      "torch.save(torch.load(path, weights_only=True), path)");
  internal::check_zip_start(start, "torch.save");
}

// Returns the tensors of a file. `storage`: how their values are read.
StateDict read(
    const std::string& path, const std::string& entry,
    c10::Storage (internal::ZipArchive::*storage)(const std::string& record)) {
  check_start(path);
  internal::ZipArchive archive(path, /*damaged=*/"");
  TORCH_CHECK_VALUE(archive.has("data.pkl"),
                    "is a zip archive, but not from torch.save: it has no "
                    "data.pkl");
  TORCH_CHECK_VALUE(!archive.has("constants.pkl"),
                    "is an archive of TorchScript, as torch.jit.save writes "
                    "in Python and torch::save in C++. Save the weights alone. "
                    "In Python: torch.save(torch.jit.load(path).state_dict(), "
                    "path). In C++: torch::load(module, path), then "
                    "gpipe::write_torch_file(path, "
                    "gpipe::state_dict(*module))");
  archive.check_byte_order();
  const std::string bytes = archive.text("data.pkl");
  const internal::Pickle pickle(bytes);
  return internal::tensors_of(
      pickle.value(),
      [&](const std::string& key, int64_t) {
        return (archive.*storage)("data/" + key);
      },
      entry);
}

// ---- Writing

// The storages to write. Their bytes are copied to the CPU when they are
// written.
struct Storages {
  std::vector<c10::Storage> storages;  // the index is the key in the file
  std::vector<at::ScalarType> dtypes;
  std::vector<std::string> names;  // the first tensor of each storage
  // By address, and without memory by dtype, too: see describe().
  std::map<std::pair<c10::StorageImpl*, at::ScalarType>, std::size_t> numbers;
};

// Returns the bytes of a storage that elements of the dtype fill.
int64_t bytes_in(const c10::Storage& storage, at::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  return static_cast<int64_t>(storage.nbytes()) / element * element;
}

internal::PickledTensor describe(const std::string& name,
                                 const at::Tensor& tensor, Storages& storages) {
  const c10::Storage& storage = tensor.storage();
  // A storage in a file has one dtype.
  const auto [found, is_new] = storages.numbers.emplace(
      std::pair(storage.unsafeGetStorageImpl(), storage.nbytes() > 0
                                                    ? at::ScalarType::Undefined
                                                    : tensor.scalar_type()),
      storages.storages.size());
  const std::size_t number = found->second;
  if (is_new) {
    storages.storages.push_back(storage);
    storages.dtypes.push_back(tensor.scalar_type());
    storages.names.push_back(name);
  }
  TORCH_CHECK_VALUE(storages.dtypes[number] == tensor.scalar_type(),
                    internal::in_quotes(storages.names[number]), " and ",
                    internal::in_quotes(name), " share memory, but the one is ",
                    storages.dtypes[number], " and the other ",
                    tensor.scalar_type(),
                    ", which PyTorch's files cannot express; clone() one");
  return {name,
          std::to_string(number),
          bytes_in(storage, tensor.scalar_type()),
          tensor.scalar_type(),
          tensor.storage_offset(),
          tensor.sizes().vec(),
          tensor.strides().vec()};
}

// Returns the first `size` bytes of a storage, on the CPU.
at::Tensor bytes_on_cpu(const c10::Storage& storage, int64_t size) {
  at::Tensor bytes =
      at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()));
  bytes.set_(storage, 0, {size}, {1});
  return bytes.cpu();
}

// A wrapper of `file` that keeps its first error, ignores later writes, and
// throws the error in check(). LibTorch's writer must not see the error: its
// destructor writes the end of the archive, and ends the process if that fails
// after an error.
class Sink {
 public:
  explicit Sink(internal::AtomicFile& file) : file_(file) {}

  std::size_t write(const void* bytes, std::size_t size) {
    if (error_) return size;
    try {
      file_.write(bytes, size);
    } catch (...) {
      error_ = std::current_exception();
    }
    return size;
  }

  void check() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  internal::AtomicFile& file_;
  std::exception_ptr error_;
};

}  // namespace

StateDict read_torch_file(const std::string& path, const std::string& entry) {
  // LibTorch's reader throws plain errors.
  return internal::with_prefix<c10::Error>(path + ": ", [&] {
    return read(path, entry, &internal::ZipArchive::storage);
  });
}

StateDict internal::map_torch_file(const std::string& path,
                                   const std::string& entry) {
  return with_prefix<c10::Error>(path + ": ", [&] {
    return read(path, entry, &ZipArchive::mapped_storage);
  });
}

bool internal::is_torch_file(const std::string& path) {
  return path.ends_with(".pt") || path.ends_with(".pth");
}

void write_torch_file(const std::string& path, const StateDict& dict) {
  Storages storages;
  std::vector<internal::PickledTensor> tensors;
  tensors.reserve(dict.size());
  for (const auto& item : dict) {
    internal::check_can_be_written(item.key(), item.value());
    internal::check_utf8(item.key(), "a pickle");
    const at::Tensor tensor = item.value().resolve_conj().resolve_neg();
    tensors.push_back(describe(item.key(), tensor, storages));
  }
  const std::string pickle = internal::pickle_tensors(tensors);

  internal::AtomicFile file(path);
  Sink sink(file);
  {
    PyTorchStreamWriter writer([&sink](const void* bytes, std::size_t size) {
      return sink.write(bytes, size);
    });
    const auto write = [&](const std::string& name, const void* bytes,
                           std::size_t size) {
      writer.writeRecord(name, bytes, size);
      sink.check();
    };
    const auto write_text = [&](const char* name, std::string_view text) {
      write(name, text.data(), text.size());
    };
    // Writes the records of torch.save, in its order.
    write_text("data.pkl", pickle);
    write_text(".format_version", "1");
    write_text(".storage_alignment", "64");
    write_text("byteorder", "little");
    for (std::size_t k = 0; k < storages.storages.size(); ++k) {
      const c10::Storage& storage = storages.storages[k];
      const at::Tensor bytes =
          bytes_on_cpu(storage, bytes_in(storage, storages.dtypes[k]));
      write("data/" + std::to_string(k), bytes.const_data_ptr(),
            static_cast<std::size_t>(bytes.numel()));
    }
    writer.writeEndOfFile();
  }
  sink.check();
  file.commit();
}

}  // namespace gpipe
