// What a rank tells all others at the end of its part of a step.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace gpipe {

struct Ending {
  bool drew = false;  // random numbers
  int replica = 0;
  at::ScalarType type = at::kFloat;
  std::vector<double> losses, weights;  // of the rank with the last stage

  // There are as many weights as losses.
  std::string encode() const;
  // c10::Error if it is cut off, or says that it is longer than it is.
  static Ending decode(const std::string& bytes);
};

}  // namespace gpipe
