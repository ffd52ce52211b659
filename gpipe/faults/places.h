// Runs that fail at one place, and what all threads did last.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/runtime/failure.h"
#include "gpipe/runtime/phase.h"

namespace gpipe::faults {

// A fault point as a run passes it. Layers of a test have some, too: they call
// fault_point() as the runtime does.
struct Place {
  std::string site;
  int64_t partition = 0, microbatch = 0;  // -1: all
  Phase phase = Phase::kForward;
  int time = 0;  // how often it has been passed before, in this cell and phase

  Failure failure() const;
  std::string to_string() const;
  friend bool operator<(const Place& a, const Place& b) {
    return std::tie(a.site, a.partition, a.microbatch, a.phase, a.time) <
           std::tie(b.site, b.partition, b.microbatch, b.phase, b.time);
  }
};

enum class Thrown { kUserError, kBadAlloc, kOutOfMemory, kForeign };
constexpr Thrown kThrown[] = {Thrown::kUserError, Thrown::kBadAlloc,
                              Thrown::kOutOfMemory, Thrown::kForeign};

// Throws a UserError of the tests, std::bad_alloc, c10::OutOfMemoryError, or
// 42.
[[noreturn]] void throw_it(Thrown thrown);
// As testing::error_of() puts it, if it has come from `place`.
std::string text_of(Thrown thrown, const Failure& place);
const char* name_of(Thrown thrown);

// From now on, notes the places that runs pass; at `place`, if given, `thrown`
// is thrown. Threads: while nothing runs.
void watch();
void watch(const Place& place, Thrown thrown);

// Ends that. The places passed, in order of time.
std::vector<Place> end_watch();
// Whether the last watch has thrown.
bool has_thrown();

// The last place of each thread, and how long ago that was. Threads: any.
std::string what_threads_do();

}  // namespace gpipe::faults
