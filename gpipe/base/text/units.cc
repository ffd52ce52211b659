#include "gpipe/base/text/units.h"

#include <absl/strings/str_format.h>

#include <array>
#include <cmath>
#include <cstddef>

namespace gpipe {
namespace {

template <std::size_t N>
std::string with_unit(double value, double step,
                      const std::array<const char*, N>& units) {
  if (std::isinf(value)) return "unlimited";
  std::size_t unit = 0;
  for (; value >= step && unit + 1 < N; ++unit) value /= step;
  return absl::StrFormat("%.4g %s", value, units[unit]);
}

}  // namespace

std::string bytes_text(double bytes) {
  return with_unit<5>(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string seconds_text(double seconds) {
  return with_unit<3>(seconds * 1e6, 1000, {"us", "ms", "s"});
}

std::string percent_text(double part, int decimals) {
  return absl::StrFormat("%.*f %%", decimals, 100 * part);
}

}  // namespace gpipe
