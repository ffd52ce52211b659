// The error for a file whose content is not what was written.
#pragma once

#include <stdexcept>

namespace gpipe::internal {

// A file that is missing, incomplete or changed. Example of what():
// "model.safetensors has 1024 bytes, 2048 expected".
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gpipe::internal
