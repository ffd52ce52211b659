// The commit that a program was built from. Does not include LibTorch.
#pragma once

namespace gpipe::benchmarks {

// What `--stamp --embed_label=<commit>` gave to Bazel: "" if there is no label,
// "redacted" without --stamp.
extern const char kCommit[];

}  // namespace gpipe::benchmarks
