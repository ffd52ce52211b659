#include "benchmarks/harness/timing.h"

#include <absl/strings/str_format.h>
#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>
#include <optional>

#include "gpipe/base/devices.h"

namespace gpipe::benchmarks {
namespace {

double wall_now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double cpu_now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) {
    squares += (value - centre) * (value - centre);
  }
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Stopwatch::Stopwatch(std::vector<c10::Device> devices)
    : devices_(std::move(devices)) {
  synchronize(devices_);
  wall_ = wall_now();
  cpu_ = cpu_now();
}

Duration Stopwatch::elapsed() const {
  synchronize(devices_);
  return {wall_now() - wall_, cpu_now() - cpu_};
}

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
      watch_({}),
      line_([](const std::string& line) { LOG(INFO) << line; }) {}

void Progress::update(int64_t epoch, double done, double samples_per_second) {
  line_.update([&] {
    return progress_line(label_, watch_.elapsed().wall_seconds, epoch, epochs_,
                         done, samples_per_second);
  });
}

void Progress::say(const std::string& text) {
  line_.say(label_ + " | " + text);
}

Duration time_of(const std::function<void()>& work) {
  const Stopwatch watch({});
  work();
  return watch.elapsed();
}

std::vector<double> wall_seconds(const std::vector<Duration>& durations) {
  std::vector<double> seconds;
  for (const Duration& each : durations) seconds.push_back(each.wall_seconds);
  return seconds;
}

std::vector<Duration> time_epochs(const std::string& label,
                                  const Epochs& epochs,
                                  const std::vector<c10::Device>& devices,
                                  const std::function<void(int64_t)>& step) {
  std::optional<Progress> progress;
  if (!epochs.silent) progress.emplace(label, epochs.count);
  std::vector<Duration> durations;
  for (int64_t epoch = 0; epoch < epochs.count; ++epoch) {
    const Stopwatch watch(devices);
    const double start = wall_now();
    for (int64_t done = 0; done < epochs.samples;) {
      const int64_t rows = std::min(epochs.batch_size, epochs.samples - done);
      step(rows);
      done += rows;
      if (!progress) continue;
      // The speed is an estimate, since the devices may still be working.
      progress->update(
          epoch + 1,
          static_cast<double>(done) / static_cast<double>(epochs.samples),
          static_cast<double>(done) / (wall_now() - start));
    }
    const Duration duration = watch.elapsed();
    if (progress) {
      progress->say(absl::StrFormat(
          "%ld/%ld epoch | %.3f samples/s, %.3f s/epoch%s", epoch + 1,
          epochs.count,
          static_cast<double>(epochs.samples) / duration.wall_seconds,
          duration.wall_seconds,
          epoch < epochs.skipped ? " (skipped: warm-up)" : ""));
    }
    if (epoch >= epochs.skipped) durations.push_back(duration);
  }
  return durations;
}

}  // namespace gpipe::benchmarks
