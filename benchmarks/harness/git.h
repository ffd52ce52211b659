// What a git checkout is at. Reads its files; needs no git. No LibTorch.
#pragma once

#include <string>

namespace gpipe::benchmarks {

// The first 12 digits of the commit that is checked out in `folder`, which has
// .git: a folder, or the file that worktrees and submodules have. "" if it has
// none, or no commit.
std::string commit_of(const std::string& folder);

}  // namespace gpipe::benchmarks
