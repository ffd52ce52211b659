// The error of TrainOptions::check_finite.
#pragma once

#include <c10/util/Exception.h>

namespace gpipe {

// A value or a gradient contains NaN or infinity. The text names it and says
// how many elements are affected; last_failure() returns the place.
class NonFiniteError : public c10::Error {
 public:
  using c10::Error::Error;
};

}  // namespace gpipe
