// Kills processes that would outlive this one. Linux only; no LibTorch.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "gpipe/base/processes/descriptor.h"

namespace gpipe::internal {

// A process that kills process groups when this process dies, even by SIGKILL.
// PR_SET_PDEATHSIG reaches a child of this process, but not the processes that
// the child has started.
//
// The supervisor has a session of its own, ignores signals other than SIGKILL
// and holds no files. It learns from a socket that this process is dead, and so
// not before the copies that fork() makes of this process have called exec or
// ended.
class Supervisor {
 public:
  // `most`: the largest number of groups. Throws std::system_error if the
  // process cannot start.
  explicit Supervisor(std::size_t most);
  // Ends the supervisor, which kills no group then.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Adds a process group.
  void add(pid_t group);

 private:
  Descriptor socket_;
  pid_t pid_ = -1;
};

}  // namespace gpipe::internal
