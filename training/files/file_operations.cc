#include "training/files/file_operations.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace gpipe::internal {

std::string read_text(const std::string& path) {
  const FileReader file(path);
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  FileWriter file(path);
  file.write(text.data(), text.size());
  file.finish();
}

std::vector<std::string> names_in_folder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(path, error), end;
  if (error == std::errc::no_such_file_or_directory) return names;
  while (!error && at != end) {
    names.push_back(at->path().filename().string());
    at.increment(error);
  }
  TORCH_CHECK_VALUE(error != std::errc::not_a_directory, path,
                    ": is not a folder");
  if (error) fail_file(path, "cannot be listed", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

void make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0)
    fail_file(path, "cannot be created", errno);
}

void move_path(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    fail_file(to, "cannot be renamed to this name", errno);
  }
}

bool exchange_folder(const std::string& from, const std::string& to,
                     const std::string& aside) {
  bool was_there = false;
  if (rename(from.c_str(), to.c_str()) != 0) {
    if (errno != EEXIST && errno != ENOTEMPTY) {
      fail_file(to, "cannot be renamed to this name", errno);
    }
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                  RENAME_EXCHANGE) == 0) {
      was_there = true;
    } else if (errno == EINVAL || errno == ENOSYS) {
      move_path(to, aside);
      move_path(from, to);
    } else {
      fail_file(to, "cannot be renamed to this name", errno);
    }
  }
  sync_folder(folder_of(to));
  return was_there;
}

void remove_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail_file(path, "cannot be removed", error.value());
}

}  // namespace gpipe::internal
