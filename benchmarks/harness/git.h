// The current commit of a git checkout. Reads its files and does not run git.
// Does not include LibTorch.
#pragma once

#include <string>

namespace gpipe::benchmarks {

// Returns the first 12 digits of the commit that is checked out in `folder`.
// `folder` contains .git: a folder or, in worktrees and submodules, a file.
// Returns "" if there is no .git or no commit.
std::string commit_of(const std::string& folder);

}  // namespace gpipe::benchmarks
