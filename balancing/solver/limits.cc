#include "balancing/solver/limits.h"

namespace gpipe::balancing::detail {

double factor_for(double bytes, double limit) {
  if (bytes <= 0 || std::isinf(limit)) return 0;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (limit == 0) return kInfinity;
  double factor = bytes / limit;
  while (factor * limit < bytes) factor = std::nextafter(factor, kInfinity);
  for (;;) {
    const double less = std::nextafter(factor, 0.0);
    if (less * limit < bytes) return factor;
    factor = less;
  }
}

}  // namespace gpipe::balancing::detail
