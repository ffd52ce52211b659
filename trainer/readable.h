// What becomes of files that cannot be read.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace gpipe::trainer {

// Threads: any.
class Readable {
 public:
  // Without `skip`, an error is an error.
  explicit Readable(bool skip) : skip_(skip) {}

  // read(index); nullopt if it throws a c10::ValueError and such are skipped.
  template <typename Read>
  auto read(int64_t index, const Read& read)
      -> std::optional<decltype(read(index))> {
    try {
      return read(index);
    } catch (const c10::ValueError& error) {
      note(index, error);
      return std::nullopt;
    }
  }

  // The first of `index`, index + 1, ... (modulo `size`) that can be read, as
  // use(its index, what was read). c10::ValueError if none can.
  template <typename Read, typename Use>
  auto first(int64_t index, int64_t size, const Read& read, const Use& use) {
    for (int64_t k = 0; k < size; ++k) {
      const int64_t here = (index + k) % size;
      if (const auto found = this->read(here, read)) return use(here, *found);
    }
    TORCH_CHECK_VALUE(false, "none of the ", size, " files can be read");
  }

  // A line for each file that has been left out since the last call.
  std::vector<std::string> take_warnings();

 private:
  // Throws it if nothing is skipped.
  void note(int64_t index, const c10::ValueError& error);

  const bool skip_;
  std::mutex mutex_;
  std::set<int64_t> skipped_;
  std::vector<std::string> warnings_;
};

}  // namespace gpipe::trainer
