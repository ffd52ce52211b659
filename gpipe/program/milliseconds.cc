#include "gpipe/program/milliseconds.h"

#include <cmath>

namespace gpipe {

using std::chrono::milliseconds;

milliseconds milliseconds_of(double seconds) {
  const double count = std::ceil(1000 * seconds);
  if (std::isnan(count)) return milliseconds::zero();
  // The limits of the integer type are not exact as doubles, so values at the
  // limits are clamped, too.
  if (count >= static_cast<double>(milliseconds::max().count())) {
    return milliseconds::max();
  }
  if (count <= static_cast<double>(milliseconds::min().count())) {
    return milliseconds::min();
  }
  return milliseconds(static_cast<milliseconds::rep>(count));
}

}  // namespace gpipe
