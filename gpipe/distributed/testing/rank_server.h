// A process that forks the ranks of a test. Linux only; no LibTorch.
//
// To load LibTorch takes 0.3 s of CPU. The server, which is the test's binary
// started again, loads it once and then forks once per rank. It has no threads,
// so a fork of it is as good as a new process, with these differences: the
// libraries lie at the same addresses in all ranks, and what they read when
// they were loaded they have read in the server's environment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpipe::testing {

// Starts a process of this binary that returns from serve_ranks(). Has the form
// and the guarantees of Command::spawn (gpipe/base/processes.h). The
// first call starts the server, with the environment of this process and
// OMP_NUM_THREADS=1, and makes this process the parent of orphaned descendants
// (PR_SET_CHILD_SUBREAPER). Throws std::system_error.
pid_t fork_rank(const std::vector<std::string>& environment, int in, int out,
                int err);

// The first call of main(). Returns in a rank, and in a process that is no
// server.
void serve_ranks();

}  // namespace gpipe::testing
