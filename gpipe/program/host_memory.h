// Host memory that the steps of a program use again and again. No LibTorch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe {

// Returns the variables, names and values, with which a program that is started
// keeps the memory that it frees. By default glibc gives the activations that a
// step has freed back to the system, and the next step has thousands of page
// faults (docs/results/peers.md). A program with another allocator, such as
// //gpipe/program:malloc, ignores them.
//
// Returns none if the environment sets thresholds of glibc's allocator
// (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES).
// Threads: pure function of the environment.
std::vector<std::pair<std::string, std::string>> keep_freed_memory_variables();

}  // namespace gpipe
