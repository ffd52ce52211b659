#include "benchmarks/harness/report/output_file.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {

OutputFile::OutputFile(const std::string& flag, std::string path,
                       const std::vector<std::string>& endings)
    : path_(std::move(path)) {
  if (path_.empty()) return;
  const std::string told = "--" + flag + "=" + path_ + ": ";
  const bool known =
      std::any_of(endings.begin(), endings.end(),
                  [this](const auto& ending) { return ends_in(ending); });
  if (!known) {
    internal::refuse(told, "expected a name that ends in ",
                     absl::StrJoin(endings, " or "));
  }
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path_, ignored);
  if (!std::ofstream(path_, std::ios::app)) {
    internal::refuse(
        told, "cannot be written; does the folder exist, and is it yours?");
  }
  // The run may end before it writes the file: leave no empty file behind.
  if (!existed) std::filesystem::remove(path_, ignored);
}

void OutputFile::write(const std::string& text) const {
  std::ofstream file(path_, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path_);
}

}  // namespace gpipe::benchmarks
