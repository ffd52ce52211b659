#include "gpipe/system_tests/places.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "gpipe/phase.h"
#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::faults {
namespace {

using Clock = std::chrono::steady_clock;

class UserError : public std::exception {
 public:
  const char* what() const noexcept override { return "injected"; }
};

// Returns the phase of a site. The phase is derived from the site, not from the
// phase that the runtime records for its error texts.
Phase phase_of(const std::string& site) {
  static const std::map<std::string, Phase> kPhases = {
      {"scatter", Phase::kScatter},
      {"gather", Phase::kGather},
      {"gradient total", Phase::kGradients},
      {"accumulate", Phase::kGradients},
      {"recompute", Phase::kRecomputing},
      {"gradient copy-in", Phase::kBackward},
      {"backward", Phase::kBackward},
      {"layer's backward", Phase::kBackward},
      {"weight gradient", Phase::kBackward},
      {"gradient sum", Phase::kBackward},
      {"gradient copy-out", Phase::kBackward},
      {"offload", Phase::kOffload},
      {"reload", Phase::kReload}};
  const auto found = kPhases.find(site);
  if (found != kPhases.end()) return found->second;
  return is_recomputing()     ? Phase::kRecomputing
         : is_checkpointing() ? Phase::kCheckpointing
                              : Phase::kForward;
}

struct Watch {
  std::mutex mutex;
  std::vector<Place> passed;
  std::map<Place, int> times;  // by place, with time 0
  std::optional<Place> armed;
  Thrown thrown = Thrown::kUserError;
  bool has_thrown = false;
  std::map<std::thread::id, std::pair<Place, Clock::time_point>> last;
};

Watch& state() {
  static auto* const watch = new Watch();
  return *watch;
}

void visit(const char* site, int64_t partition, int64_t microbatch) {
  Place place{site, partition, microbatch, phase_of(site), 0};
  Watch& watch = state();
  bool here = false;
  Thrown thrown{};
  {
    std::lock_guard<std::mutex> lock(watch.mutex);
    place.time = watch.times[place]++;
    watch.last[std::this_thread::get_id()] = {place, Clock::now()};
    here = watch.armed && !(place < *watch.armed) && !(*watch.armed < place);
    watch.has_thrown = watch.has_thrown || here;
    thrown = watch.thrown;
    watch.passed.push_back(std::move(place));
  }
  if (here) throw_it(thrown);
}

void start(std::optional<Place> armed, Thrown thrown) {
  Watch& watch = state();
  std::lock_guard<std::mutex> lock(watch.mutex);
  watch.passed.clear();
  watch.times.clear();
  watch.last.clear();
  watch.armed = std::move(armed);
  watch.thrown = thrown;
  watch.has_thrown = false;
  internal::set_fault_hook(visit);
}

}  // namespace

Failure Place::failure() const {
  Failure failure;
  failure.partition = partition;
  failure.microbatch = microbatch;
  failure.phase = phase;
  return failure;
}

std::string Place::to_string() const {
  return site + " (" + failure().place() + ", time " + std::to_string(time) +
         ")";
}

void throw_it(Thrown thrown) {
  switch (thrown) {
    case Thrown::kUserError:
      throw UserError();
    case Thrown::kBadAlloc:
      throw std::bad_alloc();
    case Thrown::kOutOfMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, "injected");
    case Thrown::kForeign:
      break;
  }
  throw 42;
}

std::string text_of(Thrown thrown, const Failure& place) {
  switch (thrown) {
    case Thrown::kUserError:
      return "gpipe::faults::(anonymous namespace)::UserError: injected";
    case Thrown::kBadAlloc:
      return "std::bad_alloc: std::bad_alloc";
    case Thrown::kOutOfMemory:
      return "c10::OutOfMemoryError: injected (in " + place.place() + ")";
    case Thrown::kForeign:
      break;
  }
  return "not a std::exception";
}

const char* to_string(Thrown thrown) {
  constexpr const char* kNames[] = {"user's", "bad_alloc", "OutOfMemory",
                                    "throw 42"};
  return kNames[static_cast<int>(thrown)];
}

void watch() { start(std::nullopt, Thrown::kUserError); }
void watch(const Place& place, Thrown thrown) { start(place, thrown); }

std::vector<Place> end_watch() {
  internal::set_fault_hook(nullptr);
  Watch& watch = state();
  std::lock_guard<std::mutex> lock(watch.mutex);
  watch.armed.reset();
  return std::exchange(watch.passed, {});
}

bool has_thrown() {
  Watch& watch = state();
  std::lock_guard<std::mutex> lock(watch.mutex);
  return watch.has_thrown;
}

std::string what_threads_do() {
  Watch& watch = state();
  std::lock_guard<std::mutex> lock(watch.mutex);
  std::ostringstream text;
  const auto now = Clock::now();
  for (const auto& [thread, last] : watch.last) {
    text << "  thread " << thread << ": " << last.first.to_string() << ", "
         << std::chrono::duration<double>(now - last.second).count()
         << " s ago\n";
  }
  if (watch.armed) text << "  armed: " << watch.armed->to_string() << "\n";
  return text.str();
}

Watchdog::Watchdog(std::chrono::seconds deadline,
                   std::function<std::string()> describe)
    : deadline_(deadline),
      describe_(std::move(describe)),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::feed() {
  std::lock_guard<std::mutex> lock(mutex_);
  fed_ = true;
}

void Watchdog::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, deadline_, [this] { return ends_; })) {
    if (std::exchange(fed_, false)) continue;
    std::cerr << "hangs: nothing for " << deadline_.count() << " s\n"
              << describe_() << std::flush;
    std::abort();
  }
}

}  // namespace gpipe::faults
