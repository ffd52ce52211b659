// What is wrong with something that was read from a disk.
#pragma once

#include <stdexcept>
#include <string>

namespace gpipe {

// "model.safetensors has 1024 bytes, 2048 expected".
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gpipe
