#include "models/weights/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "models/weights/atomic_file.h"
#include "models/weights/safetensors_header.h"
#include "models/weights/safetensors_layout.h"

namespace gpipe {
namespace {

// A function that copies bytes from `offset` in the file. The caller checks
// that the bytes exist.
using ReadAt = std::function<void(uint64_t offset, void* to, std::size_t size)>;

Safetensors read(uint64_t file_bytes, const ReadAt& read_at) {
  TORCH_CHECK_VALUE(file_bytes >= internal::kSafetensorsLengthBytes, "has ",
                    file_bytes, " bytes, too few for a header");
  uint8_t bytes[internal::kSafetensorsLengthBytes];
  read_at(0, bytes, sizeof bytes);
  uint64_t length = 0;
  for (std::size_t k = 0; k < sizeof bytes; ++k) {
    length |= uint64_t{bytes[k]} << (8 * k);
  }
  const uint64_t rest = file_bytes - internal::kSafetensorsLengthBytes;
  TORCH_CHECK_VALUE(length <= std::min(rest, internal::kMaxSafetensorsHeader),
                    "should begin with a header of ", length,
                    " bytes, but there are ", rest, ", and ",
                    internal::kMaxSafetensorsHeader,
                    " are the most that are allowed");

  std::string json(length, '\0');
  read_at(internal::kSafetensorsLengthBytes, json.data(), json.size());
  internal::SafetensorsHeader header =
      internal::parse_safetensors_header(json, rest - length);

  Safetensors result;
  result.metadata = std::move(header.metadata);
  result.tensors.reserve(header.entries.size());
  for (const internal::SafetensorsEntry& entry : header.entries) {
    at::Tensor tensor = at::empty(entry.sizes, at::TensorOptions(entry.dtype));
    if (entry.end > entry.begin) {
      read_at(internal::kSafetensorsLengthBytes + length + entry.begin,
              tensor.mutable_data_ptr(), entry.end - entry.begin);
    }
    result.tensors.insert(entry.name, std::move(tensor));
  }
  return result;
}

class InputFile {
 public:
  explicit InputFile(const std::string& path)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    TORCH_CHECK_VALUE(descriptor_ >= 0,
                      "cannot be read: ", std::strerror(errno));
  }
  ~InputFile() { close(descriptor_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const {
    struct stat status;
    TORCH_CHECK_VALUE(
        fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode),
        "is not a regular file");
    return static_cast<uint64_t>(status.st_size);
  }

  void read_at(uint64_t offset, void* to, std::size_t size) const {
    auto* rest = static_cast<char*>(to);
    while (size > 0) {
      const ssize_t got =
          pread(descriptor_, rest, size, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      TORCH_CHECK_VALUE(got >= 0, "cannot be read: ", std::strerror(errno));
      TORCH_CHECK_VALUE(got > 0, "has become shorter while it was read");
      rest += got;
      offset += static_cast<uint64_t>(got);
      size -= static_cast<std::size_t>(got);
    }
  }

 private:
  const int descriptor_;
};

// Runs `body`. Puts `source` in front of the text of a c10::ValueError.
template <typename Body>
auto with_source(const std::string& source, const Body& body) {
  try {
    return body();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, source, ": ", error.what_without_backtrace());
  }
}

}  // namespace

Safetensors read_safetensors(const std::string& path) {
  return with_source(path, [&path] {
    const InputFile file(path);
    return read(file.size(),
                [&file](uint64_t offset, void* to, std::size_t size) {
                  file.read_at(offset, to, size);
                });
  });
}

Safetensors parse_safetensors(const void* bytes, std::size_t size,
                              const std::string& source) {
  return with_source(source, [&] {
    return read(size, [bytes](uint64_t offset, void* to, std::size_t count) {
      std::memcpy(to, static_cast<const char*>(bytes) + offset, count);
    });
  });
}

void write_safetensors(const std::string& path, const StateDict& tensors,
                       const SafetensorsMetadata& metadata) {
  const internal::SafetensorsLayout layout =
      internal::lay_out(tensors, metadata);
  internal::AtomicFile file(path);
  file.write(layout.start.data(), layout.start.size());
  for (const std::size_t k : layout.order) {
    const at::Tensor tensor = internal::as_written(tensors[k].value());
    file.write(tensor.const_data_ptr(), tensor.nbytes());
  }
  file.commit();
}

}  // namespace gpipe
