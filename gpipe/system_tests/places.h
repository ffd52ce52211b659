// Makes a run fail at one place, records the last place of each thread, and
// ends a test that hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/failure.h"

namespace gpipe::faults {

// A call of fault_point(): its site, and where in a step it occurs. The runtime
// calls fault_point(), and so do the layers of tests.
struct Place {
  std::string site;
  int64_t partition = 0, microbatch = 0;  // -1: all
  Phase phase = Phase::kForward;
  int time = 0;  // number of earlier calls in the same cell and phase

  Failure failure() const;
  std::string to_string() const;
  friend bool operator<(const Place& a, const Place& b) {
    return std::tie(a.site, a.partition, a.microbatch, a.phase, a.time) <
           std::tie(b.site, b.partition, b.microbatch, b.phase, b.time);
  }
};

// The kinds of exceptions that are injected.
enum class Thrown { kUserError, kBadAlloc, kOutOfMemory, kForeign };
constexpr Thrown kThrown[] = {Thrown::kUserError, Thrown::kBadAlloc,
                              Thrown::kOutOfMemory, Thrown::kForeign};

// Throws a UserError of the tests, std::bad_alloc, c10::OutOfMemoryError, or
// the int 42.
[[noreturn]] void throw_it(Thrown thrown);
// Returns the text that testing::error_of() gives for `thrown` from `place`.
std::string text_of(Thrown thrown, const Failure& place);
const char* to_string(Thrown thrown);

// Starts recording the places that runs pass. At `place`, if given, `thrown` is
// thrown.
// Threads: call it while no run is in progress.
void watch();
void watch(const Place& place, Thrown thrown);

// Stops recording. Returns the places passed, in the order of time.
std::vector<Place> end_watch();
// Returns whether an exception was thrown since the last watch().
bool has_thrown();

// Returns the last place of each thread and the time since then, as text.
// Thread-safe.
std::string what_threads_do();

// A thread that aborts the process and prints the result of `describe` if
// feed() is not called for one to two deadlines. Thread-safe.
class Watchdog {
 public:
  Watchdog(std::chrono::seconds deadline,
           std::function<std::string()> describe);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void feed();

 private:
  void watch();

  const std::chrono::seconds deadline_;
  const std::function<std::string()> describe_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool fed_ = true, ends_ = false;
  std::thread thread_;
};

}  // namespace gpipe::faults
