#include "gpipe/failure.h"

#include <cstddef>

namespace gpipe {

const char* to_string(Phase phase) {
  // In the order of Phase.
  static constexpr const char* kNames[] = {
      "forward",   "forward (checkpointed)",
      "recompute", "backward",
      "offload",   "reload",
      "scatter",   "gather",
      "gradients"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string Failure::place() const {
  const auto name = [](const char* what, const char* all, int64_t number) {
    return number == kAll ? std::string(all)
                          : std::string(what) + std::to_string(number);
  };
  std::string text = name("partition ", "all partitions", partition) + ", " +
                     name("micro-batch ", "all micro-batches", microbatch) +
                     ", " + gpipe::to_string(phase);
  if (!layer.empty()) text += ", layer '" + layer + "'";
  return text;
}

std::string Failure::to_string() const {
  return what.empty() ? place() : place() + ": " + what;
}

}  // namespace gpipe
