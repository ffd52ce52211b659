#include "models/exported/source_line.h"

#include <algorithm>
#include <cstddef>

namespace gpipe::exported {
namespace {

constexpr std::size_t kLongest = 200;
constexpr char kFrame[] = "File \"";

// Returns a frame as one line.
std::string one_line(const std::string& frame) {
  const std::size_t end = frame.find('\n');
  std::string line = frame.substr(0, end);
  if (end != std::string::npos) {
    const std::size_t begin = frame.find_first_not_of(" \n", end);
    if (begin != std::string::npos) {
      line += ": " + frame.substr(begin, frame.find('\n', begin) - begin);
    }
  }
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "...";
  return line;
}

// Returns whether PyTorch, or code that it generates, has the frame.
bool is_in_torch(const std::string& frame) {
  const std::string file = frame.substr(0, frame.find('"', sizeof kFrame - 1));
  return file.find("torch/nn/") != std::string::npos ||
         file.find("site-packages/torch/") != std::string::npos ||
         file.find("<eval_with_key>") != std::string::npos;
}

}  // namespace

std::string source_line(const std::string& stack_trace) {
  std::string innermost;
  std::size_t end = std::string::npos;
  for (;;) {
    const std::size_t begin =
        end == 0 ? std::string::npos : stack_trace.rfind(kFrame, end - 1);
    if (begin == std::string::npos) return innermost;
    const std::string frame = stack_trace.substr(begin, end - begin);
    if (!is_in_torch(frame)) return one_line(frame);
    if (innermost.empty()) innermost = one_line(frame);
    end = begin;
  }
}

std::string module_path(const std::string& module_stack) {
  const std::string entry = module_stack.substr(module_stack.rfind(';') + 1);
  const std::size_t begin = entry.find(',');
  if (begin == std::string::npos) return "";
  std::string path =
      entry.substr(begin + 1, entry.find(',', begin + 1) - begin - 1);
  // A module that is called several times has paths such as "layer@1".
  path.erase(std::min(path.find('@'), path.size()));
  constexpr char kSelf[] = "L['self'].";
  if (path.starts_with(kSelf)) path.erase(0, sizeof kSelf - 1);
  return path;
}

}  // namespace gpipe::exported
