// The handling of files that cannot be read (--skip_broken).
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "training/data/skip_broken.h"

namespace gpipe::train_program {

// A reader of files that skips broken ones or throws. Thread-safe.
class BrokenFilePolicy {
 public:
  // `skip`: whether to skip broken files. Otherwise reading one throws
  // c10::ValueError. `size`: the number of files in the data set.
  BrokenFilePolicy(bool skip, int64_t size);

  // Read as the functions of data::BrokenFiles with the same names.
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

  // Returns one line for each file skipped since the last call.
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
  // Throws `error` again and adds the advice to use --skip_broken.
  [[noreturn]] static void rethrow(const c10::ValueError& error);
  void note(const std::string& broken);

  const bool skip_;
  std::mutex mutex_;
  int64_t left_out_ = 0;
  std::vector<std::string> warnings_;
  data::BrokenFiles broken_;
};

}  // namespace gpipe::train_program
