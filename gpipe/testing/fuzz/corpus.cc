#include "gpipe/testing/fuzz/corpus.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace gpipe::testing {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::invalid_argument(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the word between the quotes, which `text` still has, or nothing if
// `text` is not valid.
std::optional<std::string> unquoted(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return {};
  text = text.substr(1, text.size() - 2);
  std::string word;
  for (std::size_t k = 0; k < text.size(); ++k) {
    if (text[k] != '\\') {
      word += text[k];
    } else if (k + 1 < text.size() &&
               (text[k + 1] == '\\' || text[k + 1] == '"')) {
      word += text[++k];
    } else if (k + 3 < text.size() && text[k + 1] == 'x') {
      int byte = 0;
      const char* const begin = text.data() + k + 2;
      const auto [stop, error] = std::from_chars(begin, begin + 2, byte, 16);
      if (error != std::errc() || stop != begin + 2) return {};
      word += static_cast<char>(byte);
      k += 3;
    } else {
      return {};
    }
  }
  return word;
}

}  // namespace

std::vector<std::string> read_corpus(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  if (error || paths.empty()) {
    throw std::invalid_argument(folder + ": is not a folder with files");
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const fs::path& path : paths) files.push_back(read_file(path));
  return files;
}

std::vector<std::string> read_dictionary(const std::string& path) {
  std::vector<std::string> words;
  std::ifstream file(path);
  if (!file) throw std::invalid_argument(path + ": cannot be read");
  int number = 1;
  for (std::string line; std::getline(file, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t quote = std::min(line.find('"'), line.size());
    const auto word = unquoted(std::string_view(line).substr(quote));
    if (!word) {
      throw std::invalid_argument(path + ", line " + std::to_string(number) +
                                  ": expected \"word\", with \\\\, \\\" and "
                                  "\\xAB for special characters");
    }
    words.push_back(*word);
  }
  return words;
}

}  // namespace gpipe::testing
