// An output file whose path is given by a flag. Does not include LibTorch.
#pragma once

#include <string>
#include <vector>

namespace gpipe::benchmarks {

// An output file that is checked before the work and written after it.
class OutputFile {
 public:
  // Checks that the file can be written. Does not change or create it.
  //
  // `flag`: the name of the flag, for errors.
  // `path`: the value of the flag; "" for no file.
  // `endings`: the allowed endings of the path.
  //
  // Throws std::invalid_argument, naming `flag`, if `path` does not end in one
  // of `endings` or cannot be written.
  OutputFile(const std::string& flag, std::string path,
             const std::vector<std::string>& endings);

  // Returns true if the flag gives a path.
  bool is_wanted() const { return !path_.empty(); }
  bool ends_in(const std::string& ending) const {
    return path_.ends_with(ending);
  }

  // Replaces the content of the file by `text`. Throws std::runtime_error if
  // the file cannot be written.
  void write(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace gpipe::benchmarks
