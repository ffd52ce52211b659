// A file that a flag names. No LibTorch.
#pragma once

#include <string>
#include <vector>

namespace gpipe::benchmarks {

// Finds out before the work whether the result can be written after it.
class OutputFile {
 public:
  // "": none. std::invalid_argument, naming `flag`, for a path that does not
  // end in one of `endings` or cannot be written. What is in the file stays
  // until write(); one that is not there yet is made by write().
  OutputFile(const std::string& flag, std::string path,
             const std::vector<std::string>& endings);

  bool is_wanted() const { return !path_.empty(); }
  bool ends_in(const std::string& ending) const;

  // In place of what the file held. std::runtime_error if it cannot.
  void write(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace gpipe::benchmarks
