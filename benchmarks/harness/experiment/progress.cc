#include "benchmarks/harness/experiment/progress.h"

#include <absl/strings/str_format.h>
#include <glog/logging.h>

#include <utility>

namespace gpipe::benchmarks {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

std::string progress_line(const std::string& label, double seconds,
                          int64_t epoch, int64_t epochs, double done_of_epoch,
                          double samples_per_second) {
  const double done = (static_cast<double>(epoch - 1) + done_of_epoch) /
                      static_cast<double>(epochs);
  return label +
         absl::StrFormat(" | epoch %ld/%ld (%.0f%%) | %.1f samples/s | ", epoch,
                         epochs, 100 * done_of_epoch, samples_per_second) +
         clock_text(seconds, done);
}

Progress::Progress(std::string label, int64_t epochs)
    : label_(std::move(label)),
      epochs_(epochs),
      start_(Clock::now()),
      line_([](const std::string& line) { LOG(INFO) << line; }) {}

void Progress::update(int64_t epoch, double done, double samples_per_second) {
  line_.update([&] {
    return progress_line(label_, seconds_since(start_), epoch, epochs_, done,
                         samples_per_second);
  });
}

void Progress::say(const std::string& text) {
  line_.say(label_ + " | " + text);
}

}  // namespace gpipe::benchmarks
