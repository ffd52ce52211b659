// No cut respects the memory limits. No LibTorch.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpipe::balancing {

// Thrown by balance_chain (balancing/chain.h). The text says what is too large,
// and what would be enough; the numbers are here too.
class InfeasibleError : public std::invalid_argument {
 public:
  InfeasibleError(const std::string& text, int64_t layer, int64_t device,
                  double least_bytes, double least_factor)
      : std::invalid_argument(text),
        layer_(layer),
        device_(device),
        least_bytes_(least_bytes),
        least_factor_(least_factor) {}

  // The first layer that is too large for every device by itself; or else the
  // first layer that no longer fits when the devices are filled one after the
  // other, each way that there is.
  int64_t layer() const { return layer_; }

  // The device at which that filling fails; -1 if the layer is too large for
  // all.
  int64_t device() const { return device_; }

  // The least number L of bytes such that, if L were the limit of every device,
  // some cut would respect it.
  double least_bytes() const { return least_bytes_; }

  // The least factor such that, if the limit of every device were multiplied by
  // it, some cut would respect all limits; infinity if a device of 0 bytes
  // stands in the way.
  double least_factor() const { return least_factor_; }

 private:
  int64_t layer_, device_;
  double least_bytes_, least_factor_;
};

}  // namespace gpipe::balancing
