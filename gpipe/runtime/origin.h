// Whether this is still the process in which an object was made.
#pragma once

#include <cstdint>

namespace gpipe {

// fork() copies memory, but only the thread that calls it: an object whose work
// is done by threads of its own is dead in the child. Threads: any.
class Origin {
 public:
  Origin();
  // Whether a fork lies between the making of this object and now.
  bool forked() const;

 private:
  int64_t forks_;  // up to then
};

}  // namespace gpipe
