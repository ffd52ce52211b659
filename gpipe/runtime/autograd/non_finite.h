// Finds tensors that contain NaN or infinity.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/non_finite_error.h"

namespace gpipe::internal {

// Returns a text such as "3 of 64 elements are nan and 1 inf", or nullopt if
// all elements are finite. Also nullopt for tensors that are empty, undefined,
// not strided, of an integer type, or on the meta device. Waits for the
// tensor's device.
// Threads: any.
std::optional<std::string> non_finite_part(const at::Tensor& tensor);

// Throws NonFiniteError if `tensor` is not finite. `what`: the name of the
// tensor in the error, such as "the output of layer '3'".
void check_finite(const at::Tensor& tensor, const std::string& what);

// Does the same for several tensors. If there are more than one, the error
// names the element.
void check_finite(const std::vector<at::Tensor>& tensors,
                  const std::string& what);

// Checks gradients while the engine runs. Engine threads must not wait for a
// device, so watch() only starts the counting, and check() waits for the
// result.
class NonFiniteGradients {
 public:
  // Starts the check of `grad`. `of` returns its name, such as "parameter
  // '3.weight'", and is called by check() if the gradient is not finite. Not
  // thread-safe.
  void watch(const at::Tensor& grad, std::function<std::string()> of);
  // Throws NonFiniteError if any of the gradients is not finite. The text lists
  // all of them (up to 8 by name) and ends with `where`. Waits for the devices.
  void check(const std::string& where = "") const;

 private:
  struct Seen {
    std::function<std::string()> of;
    int64_t elements = 0;
    at::Tensor finite, nan;  // number of such elements, a scalar on the device
  };
  std::vector<Seen> seen_;
};

}  // namespace gpipe::internal
