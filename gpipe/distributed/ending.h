// The message that each rank sends to all others at the end of a step.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "gpipe/runtime/step/loss_totals.h"

namespace gpipe::internal {

// The report of one rank at the end of its part of a step.
struct Ending {
  bool drew = false;  // whether the step drew random numbers
  int replica = 0;
  // The dtype of the losses.
  at::ScalarType type = at::kFloat;
  // By micro-batch; empty unless the rank has the last stage.
  std::vector<double> losses;
  // The totals of these losses, as scalars on the host.
  LossTotals totals;

  // Returns this message as bytes.
  std::string encode() const;
  // Returns the message in `bytes`. Throws c10::Error if the number of bytes
  // does not fit the content.
  static Ending decode(const std::string& bytes);
};

}  // namespace gpipe::internal
