// The error for memory limits that no cut respects. No LibTorch.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpipe::balancing {

// Thrown by plan() (balancing/plan.h). The text says what is too large and
// which limit would be enough. The members give the same as numbers.
class InfeasibleError : public std::invalid_argument {
 public:
  InfeasibleError(const std::string& text, int64_t layer, int64_t device,
                  double least_bytes, double least_factor)
      : std::invalid_argument(text),
        layer_(layer),
        device_(device),
        least_bytes_(least_bytes),
        least_factor_(least_factor) {}

  // Returns the first layer that is too large for every device by itself. If
  // there is none, returns the first layer that cannot be placed when the
  // devices are filled in order, in all possible ways. -1 if it is not known:
  // of a plan().
  int64_t layer() const { return layer_; }

  // Returns the device at which that filling fails; -1 if the layer is too
  // large for all devices.
  int64_t device() const { return device_; }

  // Returns the smallest number of bytes that would allow some cut if it were
  // the limit of every device.
  double least_bytes() const { return least_bytes_; }

  // Returns the smallest factor that would allow some cut if the limit of every
  // device were multiplied by it; infinity if a device with a limit of 0 bytes
  // prevents this.
  double least_factor() const { return least_factor_; }

 private:
  int64_t layer_, device_;
  double least_bytes_, least_factor_;
};

}  // namespace gpipe::balancing
