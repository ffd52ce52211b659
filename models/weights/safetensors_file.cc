#include "models/weights/safetensors_file.h"

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "gpipe/base/json.h"
#include "gpipe/base/text.h"
#include "models/weights/formats.h"

namespace gpipe::internal {

// ---- The header

namespace {

constexpr char kMetadata[] = "__metadata__";
// The largest header in bytes that the format allows.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

SafetensorsEntry read_entry(const std::string& name, const Json& json) {
  SafetensorsEntry entry;
  entry.name = name;
  JsonReader reader(json, in_quotes(name), "a tensor of safetensors");
  const std::string dtype = reader.text("dtype");
  const DtypeNames* found = find_dtype(&DtypeNames::safetensors, dtype);
  TORCH_CHECK_VALUE(found, in_quotes(name), " has dtype ", in_quotes(dtype),
                    ", which LibTorch does not have");
  entry.dtype = found->dtype;
  entry.sizes = reader.whole_list("shape");
  const std::vector<int64_t> offsets = reader.whole_list("data_offsets");
  reader.end();
  TORCH_CHECK_VALUE(reader.find("shape") && offsets.size() == 2,
                    in_quotes(name),
                    " needs dtype, shape, and data_offsets of 2 numbers");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

SafetensorsHeader read_header(const Json& json) {
  SafetensorsHeader header;
  header.entries.reserve(object(json).size());
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadata) {
      header.entries.push_back(read_entry(name, value));
    } else if (!value.is_null()) {  // Python writes no metadata as null.
      for (const auto& [key, each] : object(value).items()) {
        header.metadata.emplace(key, internal::text(each));
      }
    }
  }
  return header;
}

// Changes the last size from numbers to elements of LibTorch.
void count_elements(SafetensorsEntry& entry) {
  const int64_t packed = find_dtype(entry.dtype)->packed;
  if (packed == 1) return;
  TORCH_CHECK_VALUE(!entry.sizes.empty() && entry.sizes.back() % packed == 0,
                    in_quotes(entry.name), " is ", entry.dtype, " of shape ",
                    c10::IntArrayRef(entry.sizes),
                    "; LibTorch needs a last size that is a multiple of ",
                    packed);
  entry.sizes.back() /= packed;
}

// Returns the sizes in numbers.
std::vector<int64_t> numbers_in(const SafetensorsEntry& entry, int64_t packed) {
  std::vector<int64_t> sizes = entry.sizes;
  TORCH_CHECK_VALUE(packed == 1 || !sizes.empty(), in_quotes(entry.name),
                    " is ", entry.dtype,
                    " without a dimension, which safetensors cannot express; "
                    "save its view({1})");
  if (packed != 1) sizes.back() *= packed;
  return sizes;
}

void check_sizes(const SafetensorsEntry& entry) {
  const std::optional<int64_t> needed = bytes_of(entry.sizes, entry.dtype);
  TORCH_CHECK_VALUE(
      needed && entry.begin <= entry.end &&
          entry.end - entry.begin == static_cast<uint64_t>(*needed),
      in_quotes(entry.name), " is ", entry.dtype, " of shape ",
      c10::IntArrayRef(entry.sizes), ", which its data from ", entry.begin,
      " to ", entry.end, " does not fit");
}

void check_cover(const std::vector<SafetensorsEntry>& entries,
                 uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> sorted;
  sorted.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) sorted.push_back(&entry);
  std::ranges::sort(sorted, [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t end = 0;
  for (const SafetensorsEntry* entry : sorted) {
    TORCH_CHECK_VALUE(entry->begin == end, "the data of ",
                      in_quotes(entry->name), " begins at ", entry->begin,
                      ", but what is before it ends at ", end);
    end = entry->end;
  }
  TORCH_CHECK_VALUE(end == data_bytes, "the header describes ", end,
                    " bytes of data, but there are ", data_bytes);
}

std::string json_text(const std::string& text) {
  check_utf8(text, "safetensors");
  return Json(text).dump();
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           uint64_t data_bytes) {
  TORCH_CHECK_VALUE(!json.empty() && json[0] == '{',
                    "the header does not begin with '{'");
  SafetensorsHeader header = read_json(
      json, "the header ", {.depth = 3, .list = kMaxDimensions}, read_header);
  for (SafetensorsEntry& entry : header.entries) {
    count_elements(entry);
    check_sizes(entry);
  }
  check_cover(header.entries, data_bytes);
  return header;
}

std::string safetensors_header_text(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto begin_member = [&text](const std::string& name) {
    if (text.back() != '{') text += ",";
    text += json_text(name) + ":";
  };
  if (!header.metadata.empty()) {
    begin_member(kMetadata);
    text += "{";
    for (const auto& [name, value] : header.metadata) {
      begin_member(name);
      text += json_text(value);
    }
    text += "}";
  }
  for (const SafetensorsEntry& entry : header.entries) {
    TORCH_CHECK_VALUE(entry.name != kMetadata, "a tensor cannot be called ",
                      kMetadata, " in a safetensors file");
    const DtypeNames* names = find_dtype(entry.dtype);
    TORCH_CHECK_VALUE(names && names->safetensors, in_quotes(entry.name),
                      " is ", entry.dtype,
                      ", which safetensors does not support");
    begin_member(entry.name);
    text += std::string("{\"dtype\":\"") + names->safetensors +
            "\",\"shape\":" + Json(numbers_in(entry, names->packed)).dump() +
            ",\"data_offsets\":" + Json({entry.begin, entry.end}).dump() + "}";
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  TORCH_CHECK_VALUE(text.size() <= kMaxSafetensorsHeader, "a header of ",
                    text.size(), " bytes; safetensors has at most ",
                    kMaxSafetensorsHeader);
  return text;
}

// ---- Writing

SafetensorsLayout lay_out(const StateDict& tensors,
                          const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  SafetensorsHeader& header = layout.header;
  header.metadata = metadata;
  for (const auto& item : tensors) {
    check_can_be_written(item.key(), item.value());
    SafetensorsEntry entry;
    entry.name = item.key();
    entry.dtype = item.value().scalar_type();
    entry.sizes = item.value().sizes().vec();
    header.entries.push_back(std::move(entry));
  }

  layout.order.resize(header.entries.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::ranges::stable_sort(layout.order, [&](auto a, auto b) {
    return c10::elementSize(header.entries[a].dtype) >
           c10::elementSize(header.entries[b].dtype);
  });
  uint64_t end = 0;
  for (const std::size_t k : layout.order) {
    header.entries[k].begin = end;
    end += tensors[k].value().nbytes();
    header.entries[k].end = end;
  }

  const std::string json = safetensors_header_text(header);
  for (std::size_t k = 0; k < kSafetensorsLengthBytes; ++k) {
    layout.start.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * k)));
  }
  layout.start += json;
  return layout;
}

void write_laid_out(AtomicFile& file, const StateDict& tensors,
                    const SafetensorsLayout& layout) {
  file.write(layout.start.data(), layout.start.size());
  for (const std::size_t k : layout.order) {
    const at::Tensor tensor = as_written(tensors[k].value());
    file.write(tensor.const_data_ptr(), tensor.nbytes());
  }
}

at::Tensor as_written(const at::Tensor& tensor) {
  // Without an operator, a process may exit meanwhile (gpipe/base/threads).
  if (tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
      !tensor.is_neg()) {
    return tensor;
  }
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

// ---- Reading

SafetensorsStart read_safetensors_start(uint64_t file_bytes,
                                        const ReadAt& read_at) {
  TORCH_CHECK_VALUE(file_bytes >= kSafetensorsLengthBytes, "has ", file_bytes,
                    " bytes, too few for a header");
  uint8_t bytes[kSafetensorsLengthBytes];
  read_at(0, bytes, sizeof bytes);
  uint64_t length = 0;
  for (std::size_t k = 0; k < sizeof bytes; ++k) {
    length |= uint64_t{bytes[k]} << (8 * k);
  }
  const uint64_t rest = file_bytes - kSafetensorsLengthBytes;
  TORCH_CHECK_VALUE(length <= std::min(rest, kMaxSafetensorsHeader),
                    "should begin with a header of ", length,
                    " bytes, but there are ", rest, ", and ",
                    kMaxSafetensorsHeader, " are the most that are allowed");

  std::string json(length, '\0');
  read_at(kSafetensorsLengthBytes, json.data(), json.size());
  return {parse_safetensors_header(json, rest - length),
          kSafetensorsLengthBytes + length};
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : reader_(with_prefix<c10::Error>("", [&] { return FileReader(path); })),
      start_(with_prefix<c10::Error>("", [&] {
        return with_prefix(path + ": ", [&] {
          return read_safetensors_start(
              reader_.size(), [&](uint64_t offset, void* to, std::size_t size) {
                reader_.read_at(offset, to, size);
              });
        });
      })) {}

void SafetensorsFile::read(const SafetensorsEntry& entry, uint64_t offset,
                           void* to, std::size_t size) const {
  with_prefix<c10::Error>(in_quotes(entry.name) + " of ", [&] {
    reader_.read_at(start_.data_begin + entry.begin + offset, to, size);
  });
}

}  // namespace gpipe::internal
