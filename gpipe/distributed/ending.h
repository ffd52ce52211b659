// The message that each rank sends to all others at the end of a step.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace gpipe::internal {

// The report of one rank at the end of its part of a step.
struct Ending {
  bool drew = false;  // whether the step drew random numbers
  int replica = 0;
  // The dtype of the losses.
  at::ScalarType type = at::kFloat;
  // By micro-batch; empty unless the rank has the last stage.
  std::vector<double> losses, weights;

  // Returns this message as bytes. `weights` must be as long as `losses`.
  std::string encode() const;
  // Returns the message in `bytes`. Throws c10::Error if the number of bytes
  // does not fit the number of losses.
  static Ending decode(const std::string& bytes);
};

}  // namespace gpipe::internal
