// Formats numbers with readable units. No LibTorch.
#pragma once

#include <string>

namespace gpipe {

// Returns a number >= 0 with at most four digits, in the largest unit of which
// it is at least one: "0 B", "1.5 KiB", "98 MiB". Infinity is "unlimited". Byte
// units are B, KiB, MiB, GiB and TiB, in steps of 1024. Units of time are us,
// ms and s.
//
// Thread-safe.
std::string bytes_text(double bytes);
std::string seconds_text(double seconds);

// Returns a fraction as a percentage: 0.125 is "12.5 %", or "12 %" without
// decimals. Thread-safe.
std::string percent_text(double part, int decimals = 1);

}  // namespace gpipe
