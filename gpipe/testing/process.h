// What a test asks of its process and of others: the number of rounds, the
// threads, and whether a process runs. No LibTorch.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace gpipe::testing {

// ---- The number of rounds of a randomised test or a sweep.

// Returns whether the environment variable GPIPE_THOROUGH is 1, as in
// `tools/check.sh thorough`. It is not in `bazel test //...`.
inline bool is_thorough() {
  const char* const value = std::getenv("GPIPE_THOROUGH");
  return value != nullptr && std::string_view(value) == "1";
}

// Returns `thorough` if is_thorough(), else `quick`.
//
// Rounds come in the same order with the same seeds, so that the quick run is a
// part of the thorough one.
inline int64_t rounds(int64_t quick, int64_t thorough) {
  return is_thorough() ? thorough : quick;
}

// ---- The threads of this process.

// Returns the names of the threads of this process, in no order.
inline std::vector<std::string> thread_names() {
  std::vector<std::string> names;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    // There is no name of a thread that has just ended.
    if (std::getline(file, name)) names.push_back(std::move(name));
  }
  return names;
}

// Returns their number.
inline int count_threads() { return static_cast<int>(thread_names().size()); }

// ---- Other processes.

// Polls until `condition` is true. Returns false after 30 s, which only a
// failure takes.
inline bool comes_true(const std::function<bool()>& condition) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  while (Clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

// Returns whether a process runs. A zombie does not: its parent, which may be
// another process, has not waited for it yet.
inline bool runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  const char state = text[text.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

}  // namespace gpipe::testing
