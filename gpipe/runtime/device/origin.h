// Detects whether an object is used in a forked child process.
#pragma once

#include <cstdint>

namespace gpipe::internal {

// The process in which an object was made. fork() copies memory, but only the
// calling thread: in the child, an object that needs its own threads cannot
// work. Thread-safe.
class Origin {
 public:
  Origin();
  // Returns whether this process was forked after the object was made.
  bool forked() const;

 private:
  int64_t forks_;  // number of forks at construction
};

}  // namespace gpipe::internal
