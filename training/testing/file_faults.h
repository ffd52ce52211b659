// File operations that fail, or are the last thing a process does.
//
// The functions of the C library that change files are replaced in the binary
// that links this, so that whatever code calls them is counted, that of other
// libraries too. As long as nothing is armed they do what they always do, but
// that fsync does not wait for a disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::testing {

enum class Fault {
  kNone,       // only count
  kKill,       // SIGKILL before the operation
  kKillHalf,   // of a write, the first half is done before that
  kError,      // it fails, and all after it that write do, with `error`
  kErrorOnce,  // it fails, and no other one
  kShort,      // of a write, the first half is done, without an error
};

// From now on, counts operations on what is in `folder` and below (open to
// write or of a folder, mkdir, write, fsync, close of what was open, rename,
// unlink, rmdir), and has the fault happen at operation number `at`, from 0.
// `folder` is an absolute path without links.
void arm_fault(const std::string& folder, int64_t at, Fault fault,
               int error = 0);

// Ends that. The operations since, in order: "mkdir .step-...", with paths
// relative to the folder.
std::vector<std::string> disarm_fault();

}  // namespace gpipe::testing
