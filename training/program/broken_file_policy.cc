#include "training/program/broken_file_policy.h"

#include <utility>

namespace gpipe::train_program {

BrokenFilePolicy::BrokenFilePolicy(bool skip, int64_t size)
    : skip_(skip),
      broken_(size, [this](const std::string& broken) { note(broken); }) {}

void BrokenFilePolicy::rethrow(const c10::ValueError& error) {
  throw c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                        std::string(error.what_without_backtrace()) +
                            "; --skip_broken skips such files");
}

void BrokenFilePolicy::note(const std::string& broken) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++left_out_;
  warnings_.push_back("skipped, number " + std::to_string(left_out_) + ": " +
                      broken);
}

std::vector<std::string> BrokenFilePolicy::take_warnings() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace gpipe::train_program
