#include "trainer/readable.h"

#include <utility>

namespace gpipe::trainer {

void Readable::note(int64_t index, const c10::ValueError& error) {
  if (!skip_) {
    throw c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                          std::string(error.what_without_backtrace()) +
                              "; --skip_broken goes on without such files");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!skipped_.insert(index).second) return;
  warnings_.push_back("left out, number " + std::to_string(skipped_.size()) +
                      ": " + error.what_without_backtrace());
}

std::vector<std::string> Readable::take_warnings() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace gpipe::trainer
