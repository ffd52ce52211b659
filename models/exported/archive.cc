#include "models/exported/archive.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/base/crc32c.h"
#include "models/weights/in_quotes.h"
#include "models/weights/zip_directory.h"
#include "models/weights/zip_start.h"

namespace gpipe::exported {
namespace {

using caffe2::serialize::PyTorchStreamReader;
using internal::in_quotes;

// Returns the name of the only program in the archive.
std::string find_model(const std::vector<std::string>& records) {
  constexpr std::string_view kBegin = "models/", kEnd = ".json";
  std::vector<std::string> names;
  for (const std::string& record : records) {
    if (record.size() > kBegin.size() + kEnd.size() &&
        record.starts_with(kBegin) && record.ends_with(kEnd)) {
      names.push_back(record.substr(
          kBegin.size(), record.size() - kBegin.size() - kEnd.size()));
    }
  }
  TORCH_CHECK_VALUE(!names.empty(),
                    "has no record models/NAME.json, so it is no exported "
                    "program; write it with torch.export.save");
  TORCH_CHECK_VALUE(names.size() == 1, "has ", names.size(),
                    " programs, such as ", in_quotes(names[0]), " and ",
                    in_quotes(names[1]),
                    "; only one is read: save each in its own file");
  return names[0];
}

uint32_t checksum_of_weights(const std::vector<internal::ZipRecord>& records) {
  uint32_t sum = 0;
  const auto add = [&](const auto& number) {
    sum = internal::crc32c(&number, sizeof(number), sum);
  };
  for (const internal::ZipRecord& each : records) {
    if (!each.name.starts_with("data/weights/") &&
        !each.name.starts_with("data/constants/")) {
      continue;
    }
    sum = internal::crc32c(each.name.data(), each.name.size(), sum);
    add(each.size);
    add(each.crc32);
  }
  return sum;
}

// Calls `read`, and turns an error of LibTorch's reader into a c10::ValueError.
template <typename Read>
auto checked(const Read& read) {
  try {
    return read();
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "is damaged: ", error.what_without_backtrace());
  }
}

}  // namespace

Archive::Archive(const std::string& path) {
  internal::check_zip_start(internal::read_start(path, 4), "torch.export.save");
  weights_checksum_ = checksum_of_weights(internal::read_zip_directory(path));
  reader_ =
      checked([&] { return std::make_unique<PyTorchStreamReader>(path); });
  // An exported program says that it is one; a file of torch.save does not.
  TORCH_CHECK_VALUE(has("archive_format") && text("archive_format") == "pt2",
                    "is a zip archive, but not from torch.export.save (record "
                    "'archive_format' is not 'pt2')");
  if (has("byteorder")) {
    const std::string order = text("byteorder");
    TORCH_CHECK_VALUE(order == "little", "has byte order ", in_quotes(order),
                      "; only 'little' is read");
  }
  model_ = find_model(checked([&] { return reader_->getAllRecords(); }));
}

Archive::~Archive() = default;

bool Archive::has(const std::string& record) {
  return checked([&] { return reader_->hasRecord(record); });
}

std::size_t Archive::size(const std::string& record) {
  TORCH_CHECK_VALUE(has(record), "has no record ", in_quotes(record));
  return checked([&] { return reader_->getRecordSize(record); });
}

std::string Archive::text(const std::string& record) {
  TORCH_CHECK_VALUE(has(record), "has no record ", in_quotes(record));
  const auto [data, size] = checked([&] { return reader_->getRecord(record); });
  return {static_cast<const char*>(data.get()), size};
}

c10::Storage Archive::storage(const std::string& record) {
  TORCH_CHECK_VALUE(has(record), "has no record ", in_quotes(record));
  auto [data, size] = checked([&] { return reader_->getRecord(record); });
  return {c10::Storage::use_byte_size_t(), size, std::move(data),
          /*allocator=*/nullptr, /*resizable=*/false};
}

}  // namespace gpipe::exported
