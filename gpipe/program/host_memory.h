// Host memory that the steps of a program use again and again. No LibTorch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe {

// Makes the C library keep what is freed, for the rest of the process, as
// LibTorch does on accelerators. By default glibc gives the activations that a
// step has freed back to the system, and the next step has thousands of page
// faults (docs/results/peers.md).
//
// Returns false, and changes nothing, if the environment sets thresholds of
// glibc's allocator (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or
// GLIBC_TUNABLES), or if the program has another allocator.
// Threads: call it from main() before threads start.
bool keep_freed_memory();

// Returns the variables, names and values, by which a program that is started
// does the same. Returns none if the environment sets thresholds.
std::vector<std::pair<std::string, std::string>> keep_freed_memory_variables();

}  // namespace gpipe
