#include "gpipe/base/program.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"

DECLARE_bool(help);  // defined by gflags

namespace gpipe {

void begin_program() {
  // open() returns the lowest number that is free.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || open("/dev/null", O_RDWR) >= 0) continue;
    internal::refuse("descriptor ", fd,
                     " is closed, and /dev/null cannot be opened instead: ",
                     std::strerror(errno));
  }
  const char* const folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (!folder || chdir(folder) == 0) return;
  internal::refuse("BUILD_WORKING_DIRECTORY is '", folder,
                   "', which cannot be entered: ", std::strerror(errno));
}

bool read_flags(int* argc, char*** argv, const std::string& usage,
                const char* folder) {
  gflags::SetUsageMessage(usage);
  gflags::ParseCommandLineNonHelpFlags(argc, argv, /*remove_flags=*/true);
  if (FLAGS_help) {
    gflags::ShowUsageWithFlagsRestrict((*argv)[0], folder);
    return false;
  }
  gflags::HandleCommandLineHelpFlags();  // handles --helpfull, --version, ...
  return true;
}

std::string flags_text(const std::string& folder) {
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  std::ranges::sort(flags, {}, &gflags::CommandLineFlagInfo::name);
  std::string text;
  for (const auto& flag : flags) {
    if (flag.filename.find(folder) == std::string::npos) continue;
    std::string value = flag.default_value.empty() ? "''" : flag.default_value;
    // gflags gives a double all of its digits, such as 1.0000000000000001e-05.
    if (flag.type == "double") {
      value = absl::StrFormat("%g", std::strtod(value.c_str(), nullptr));
    }
    absl::StrAppend(&text, "  --", flag.name, "=", value, "\n      ",
                    flag.description, "\n");
  }
  return text;
}

void check_unused(const std::vector<const char*>& flags,
                  const std::string& why) {
  for (const char* flag : flags) {
    if (gflags::GetCommandLineFlagInfoOrDie(flag).is_default) continue;
    internal::refuse("--", flag, " ", why);
  }
}

void check_output_files(const FlagPaths& written, const FlagPaths& needed) {
  std::error_code error;
  // By the path without links and "..", if the folders can be read.
  const auto key = [&](const std::string& path) {
    const auto absolute = std::filesystem::absolute(path, error);
    const auto plain = std::filesystem::weakly_canonical(absolute, error);
    return (error ? absolute : plain).string();
  };
  std::map<std::string, const char*> flags;
  for (const auto& [flag, path] : needed) {
    if (!path.empty()) flags.emplace(key(path), flag);
  }
  for (const auto& [flag, path] : written) {
    if (path.empty()) continue;
    if (std::filesystem::is_directory(path, error)) {
      internal::refuse("--", flag, "=", path, " is a folder; name a file");
    }
    const auto [other, is_new] = flags.emplace(key(path), flag);
    if (!is_new) {
      internal::refuse("--", other->second, " and --", flag,
                       " name the same file, ", path, "; give each its own");
    }
  }
}

using std::chrono::milliseconds;

milliseconds milliseconds_of(double seconds) {
  const double count = std::ceil(1000 * seconds);
  if (std::isnan(count)) return milliseconds::zero();
  // The limits of the integer type are not exact as doubles, so values at the
  // limits are clamped, too.
  if (count >= static_cast<double>(milliseconds::max().count())) {
    return milliseconds::max();
  }
  if (count <= static_cast<double>(milliseconds::min().count())) {
    return milliseconds::min();
  }
  return milliseconds(static_cast<milliseconds::rep>(count));
}

void load_operators(const std::string& paths) {
  for (const std::string& path : split_list(paths)) {
    if (path.empty()) {
      internal::refuse("--operators=", paths, ": a path is empty");
    }
    // dlopen() searches other folders for a name without a folder.
    const std::string file = std::filesystem::absolute(path);
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) continue;
    internal::refuse("--operators=", path, ": ", dlerror());
  }
}

namespace {

constexpr char kTrim[] = "MALLOC_TRIM_THRESHOLD_";
constexpr char kMap[] = "MALLOC_MMAP_THRESHOLD_";

// Larger blocks are mapped, and given back when they are freed. 32 MiB is the
// largest value that glibc takes, and the one to which the threshold grows by
// itself. A program that sets one threshold ends this growth, so both are set.
constexpr int kMapFrom = 32 << 20;
constexpr int kTrimFrom = std::numeric_limits<int>::max();

}  // namespace

std::vector<std::pair<std::string, std::string>> keep_freed_memory_variables() {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  if (std::getenv(kTrim) || std::getenv(kMap) ||
      (tunables && std::strstr(tunables, "glibc.malloc."))) {
    return {};
  }
  return {{kMap, std::to_string(kMapFrom)}, {kTrim, std::to_string(kTrimFrom)}};
}

}  // namespace gpipe
