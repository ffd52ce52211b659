// File operations that fail or kill the process, for tests.
//
// A binary that links this target gets replacements for the C library functions
// that change files. So operations of all code are counted, also those of other
// libraries. While no fault is armed, the functions work as usual, except that
// fsync does not wait for the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::testing {

// The effect on the operation that arm_fault() selects.
enum class Fault {
  kNone,       // nothing; operations are only counted
  kKill,       // SIGKILL before the operation
  kKillHalf,   // as kKill, but a write first writes half of its bytes
  kError,      // it and all later operations that need space fail with `error`
  kErrorOnce,  // only this operation fails, with `error`
  kShort,      // a write writes half of its bytes and reports no error
};

// Starts to count the operations on files in `folder` and below, and makes
// `fault` happen at operation number `at`, counted from 0. `folder` is an
// absolute path without symbolic links. Operations are: open for writing or of
// a folder, mkdir, write, fsync, close of a file that was opened in this way,
// rename, unlink, rmdir.
void arm_fault(const std::string& folder, int64_t at, Fault fault,
               int error = 0);

// Stops counting and injecting faults. Returns the operations since arm_fault()
// in order, with paths relative to the folder: "mkdir .step-...".
std::vector<std::string> disarm_fault();

}  // namespace gpipe::testing
