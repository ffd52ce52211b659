// Changes to the folder in which `bazel run` was typed. No LibTorch.
#pragma once

namespace gpipe {

// Changes to the folder in BUILD_WORKING_DIRECTORY, if it is set. `bazel run`
// starts programs in another folder and sets the variable to the user's folder.
// Call this before flags are read (for --flagfile), so that paths in flags are
// relative to the user's folder.
//
// Throws std::invalid_argument with the path and the system's reason if the
// folder cannot be entered.
void enter_working_directory();

}  // namespace gpipe
