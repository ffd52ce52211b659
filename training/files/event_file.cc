#include "training/files/event_file.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/text.h"

namespace gpipe::internal {
namespace {

constexpr char kPrefix[] = "events.out.tfevents.";
constexpr char kSuffix[] = ".gpipe";

// Appends the bytes of a number in little-endian order, on any processor.
template <typename Number>
void put(std::string& bytes, Number number) {
  for (std::size_t k = 0; k < sizeof(Number); ++k) {
    bytes.push_back(static_cast<char>(number >> 8 * k & 0xFF));
  }
}

// The types in protobuf's wire format. A field is its number and type, then its
// value (https://protobuf.dev/programming-guides/encoding).
enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& bytes, uint64_t number) {
  for (; number >= 0x80; number >>= 7) {
    bytes.push_back(static_cast<char>(number | 0x80));
  }
  bytes.push_back(static_cast<char>(number));
}

void put_key(std::string& bytes, int field, Wire wire) {
  put_varint(bytes,
             static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}

void put_int(std::string& bytes, int field, int64_t number) {
  put_key(bytes, field, Wire::kVarint);
  put_varint(bytes, static_cast<uint64_t>(number));
}

void put_double(std::string& bytes, int field, double number) {
  put_key(bytes, field, Wire::kFixed64);
  put(bytes, std::bit_cast<uint64_t>(number));
}

void put_float(std::string& bytes, int field, float number) {
  put_key(bytes, field, Wire::kFixed32);
  put(bytes, std::bit_cast<uint32_t>(number));
}

// Appends a field that holds a text or a nested message.
void put_bytes(std::string& bytes, int field, const std::string& content) {
  put_key(bytes, field, Wire::kBytes);
  put_varint(bytes, content.size());
  bytes += content;
}

uint32_t masked_crc(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes.data(), bytes.size());
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

std::string record(const std::string& data) {
  std::string bytes;
  put(bytes, uint64_t{data.size()});
  put(bytes, masked_crc(bytes));
  bytes += data;
  put(bytes, masked_crc(data));
  return bytes;
}

std::string new_path(const std::string& folder, double seconds) {
  auto second = static_cast<int64_t>(seconds);
  for (const std::string& name : names_in_folder(folder)) {
    if (!name.starts_with(kPrefix)) continue;
    const int64_t there =
        std::strtoll(name.c_str() + sizeof kPrefix - 1, nullptr, 10);
    // Ignores names with a second so late that no new file could follow them.
    if (there < 9'999'999'999) second = std::max(second, there + 1);
  }
  const std::string name =
      kPrefix + absl::StrFormat("%010ld", second) + "." + host_name() + kSuffix;
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace

EventFile::EventFile(const std::string& folder, double seconds)
    : file_(new_path(folder, seconds)) {
  std::string version;
  put_bytes(version, 3, "brain.Event:2");
  write_event(seconds, 0, version);
}

std::vector<std::string> EventFile::all_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : names_in_folder(folder)) {
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) {
      paths.push_back((std::filesystem::path(folder) / name).string());
    }
  }
  return paths;
}

void EventFile::restart(double seconds, int64_t step) {
  std::string log, content;
  put_int(log, 1, 1);
  put_bytes(content, 7, log);
  write_event(seconds, step, content);
}

void EventFile::scalars(
    double seconds, int64_t step,
    const std::vector<std::pair<std::string, double>>& values) {
  std::string summary, content;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);
    put_float(value, 2, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  put_bytes(content, 5, summary);
  write_event(seconds, step, content);
}

void EventFile::write_event(double seconds, int64_t step,
                            const std::string& content) {
  std::string event;
  put_double(event, 1, seconds);
  if (step != 0) put_int(event, 2, step);  // a missing step means 0
  event += content;
  const std::string bytes = record(event);
  file_.write(bytes.data(), bytes.size());
}

}  // namespace gpipe::internal
