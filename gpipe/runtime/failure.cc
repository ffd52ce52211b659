#include "gpipe/runtime/failure.h"

namespace gpipe {

std::string Failure::place() const {
  std::string text = "partition " + std::to_string(partition) +
                     ", micro-batch " + std::to_string(microbatch) + ", " +
                     gpipe::to_string(phase);
  if (!layer.empty()) text += ", layer '" + layer + "'";
  return text;
}

std::string Failure::to_string() const {
  return what.empty() ? place() : place() + ": " + what;
}

}  // namespace gpipe
