// The first steps of main(): standard streams, folder, flags, operators and
// host memory. No LibTorch.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

// Opens /dev/null as each of stdin, stdout and stderr that is closed, as after
// `program >&-` in a shell. Otherwise a file or a socket that is opened later
// would get the number, and the text that the program prints.
//
// Then changes to the folder in BUILD_WORKING_DIRECTORY, if it is set. `bazel
// run` starts programs in another folder and sets the variable to the user's
// folder. Call this before flags are read (for --flagfile), so that paths in
// flags are relative to the user's folder.
//
// Throws std::invalid_argument with the path and the system's reason if
// /dev/null cannot be opened or the folder cannot be entered.
void begin_program();

// Parses all --name=value and removes them from argc and argv. For --help,
// prints `usage` and the flags of files whose path contains `folder`, and
// returns false: the program should end then. Otherwise returns true.
//
// Ends the process after --helpfull, --version and similar flags. Also ends it,
// with status 1 and a line of text, if a flag is unknown or a value has a wrong
// type.
// Threads: call it from main() before threads start, because gflags' values
// have no locks.
bool read_flags(int* argc, char*** argv, const std::string& usage,
                const char* folder);

// Returns the part of a --help about the flags of files whose path contains
// `folder`, sorted by name: two lines for each, with the default and the
// description. Threads: as read_flags().
std::string flags_text(const std::string& folder);

// Throws std::invalid_argument if one of `flags` was given, even with its
// default value. `why`: the end of the error, such as "has no meaning with
// --csv". Threads: as read_flags().
void check_unused(const std::vector<const char*>& flags,
                  const std::string& why);

// Names of flags, and the paths that they give, "" for none.
using FlagPaths = std::vector<std::pair<const char*, std::string>>;

// Throws std::invalid_argument if a program cannot write all of these files: if
// one is a folder, or the same file as another one, or as one that the program
// needs. Thread-safe.
void check_output_files(const FlagPaths& written, const FlagPaths& needed = {});

// Converts the seconds of a flag, which may have a fraction. Returns the time
// in milliseconds, rounded up, so that a short time does not become 0. Values
// that are too large, infinity included, are clamped. NaN is 0. Thread-safe.
std::chrono::milliseconds milliseconds_of(double seconds);

// Loads shared libraries, which register operators with LibTorch as they are
// loaded. `paths`: separated by commas; "" for none. The libraries stay loaded.
// They are code that runs in this process: load only those that you trust.
//
// Throws std::invalid_argument with --operators, the path and the system's
// reason if a library cannot be loaded.
void load_operators(const std::string& paths);

// Returns the variables, names and values, with which a program that is started
// keeps the memory that it frees. By default glibc gives the activations that a
// step has freed back to the system, and the next step has thousands of page
// faults (docs/results/peers.md). A program with another allocator, such as
// //gpipe/base:malloc, ignores them.
//
// Returns none if the environment sets thresholds of glibc's allocator
// (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES).
// Threads: pure function of the environment.
std::vector<std::pair<std::string, std::string>> keep_freed_memory_variables();

}  // namespace gpipe
