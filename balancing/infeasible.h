// The error for memory limits that no cut respects. No LibTorch.
#pragma once

#include <stdexcept>
#include <string>

namespace gpipe::balancing {

// Thrown by plan() (balancing/plan.h). The text says what is too large and
// which limit would be enough. The members give the same as numbers.
class InfeasibleError : public std::invalid_argument {
 public:
  InfeasibleError(const std::string& text, double least_bytes,
                  double least_factor)
      : std::invalid_argument(text),
        least_bytes_(least_bytes),
        least_factor_(least_factor) {}

  // least_bytes() and least_factor() do not consider offload, with which less
  // may be enough. With several stages per rank, they are the smallest ones
  // that the search found.

  // Returns the smallest number of bytes that would allow some cut if it were
  // the limit of every device.
  double least_bytes() const { return least_bytes_; }

  // Returns the smallest factor that would allow some cut if the limit of every
  // device were multiplied by it; infinity if a device with a limit of 0 bytes
  // prevents this.
  double least_factor() const { return least_factor_; }

 private:
  double least_bytes_, least_factor_;
};

}  // namespace gpipe::balancing
