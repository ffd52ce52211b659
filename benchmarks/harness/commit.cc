// Bazel compiles this file when it links a program, and defines the macro.
// Without --stamp a new commit causes no rebuild.
namespace gpipe::benchmarks {

extern const char kCommit[];
const char kCommit[] = BUILD_EMBED_LABEL;

}  // namespace gpipe::benchmarks
