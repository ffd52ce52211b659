// --skip_broken: what becomes of files that cannot be read.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data/skip_broken.h"

namespace gpipe::trainer {

// Without `skip` an error is an error. Threads: any.
class Readable {
 public:
  // Of a set of `size` files.
  Readable(bool skip, int64_t size);

  // As those of data::BrokenFiles.
  template <typename Get>
  auto read(int64_t index, const Get& get) {
    if (skip_) return broken_.read(index, get);
    return with_advice([&] { return get(index); });
  }
  template <typename Get>
  auto read_or_none(int64_t index, const Get& get)
      -> std::optional<decltype(get(index))> {
    if (skip_) return broken_.read_or_none(index, get);
    return with_advice([&] { return get(index); });
  }

  // A line for each file that has been left out since the last call.
  std::vector<std::string> take_warnings();

 private:
  template <typename Read>
  static auto with_advice(const Read& read) {
    try {
      return read();
    } catch (const c10::ValueError& error) {
      rethrow(error);
    }
  }
  // With the flag that goes on.
  [[noreturn]] static void rethrow(const c10::ValueError& error);
  void note(const std::string& broken);

  const bool skip_;
  std::mutex mutex_;
  int64_t left_out_ = 0;
  std::vector<std::string> warnings_;
  data::BrokenFiles broken_;
};

}  // namespace gpipe::trainer
