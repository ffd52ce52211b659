// Where a program is that `bazel run` has started. No LibTorch.
#pragma once

namespace gpipe {

// `bazel run` starts programs in a folder of its own. Goes to the one in which
// it was typed (BUILD_WORKING_DIRECTORY), so that paths in flags are those of
// the user's shell: to be called before flags are read, for --flagfile.
// Otherwise nothing. std::invalid_argument with the path and the system's
// reason if that cannot be entered.
void enter_working_directory();

}  // namespace gpipe
