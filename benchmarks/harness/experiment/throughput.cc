#include "benchmarks/harness/experiment/throughput.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <optional>
#include <utility>

#include "benchmarks/harness/experiment/progress.h"
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
