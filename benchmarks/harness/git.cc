#include "benchmarks/harness/git.h"

#include <filesystem>
#include <fstream>

namespace gpipe::benchmarks {
namespace {

using Path = std::filesystem::path;

std::string first_line(const Path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Returns the rest of the file's first line if the line begins with `name`,
// otherwise "".
std::string value_of(const std::string& name, const Path& path) {
  const std::string line = first_line(path);
  return line.rfind(name, 0) == 0 ? line.substr(name.size()) : "";
}

Path git_folder(const Path& folder) {
  // operator/ returns the right path if that one is absolute.
  const std::string elsewhere = value_of("gitdir: ", folder / ".git");
  return elsewhere.empty() ? folder / ".git" : folder / elsewhere;
}

// Returns the hash of `ref` in packed-refs, the list of refs that have no file
// of their own, or "".
std::string packed_hash(const Path& git, const std::string& ref) {
  std::ifstream packed(git / "packed-refs");
  for (std::string line; std::getline(packed, line);) {
    const size_t blank = line.find(' ');
    if (blank != std::string::npos && line.substr(blank + 1) == ref) {
      return line.substr(0, blank);
    }
  }
  return "";
}

}  // namespace

std::string commit_of(const std::string& folder) {
  const Path git = git_folder(folder);
  const std::string ref = value_of("ref: ", git / "HEAD");
  if (ref.empty()) return first_line(git / "HEAD").substr(0, 12);
  // Branches are in the folder of the repository that all worktrees share.
  const Path shared = git / first_line(git / "commondir");
  std::string hash = first_line(git / ref);
  if (hash.empty()) hash = first_line(shared / ref);
  if (hash.empty()) hash = packed_hash(shared, ref);
  return hash.substr(0, 12);
}

}  // namespace gpipe::benchmarks
