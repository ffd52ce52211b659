// Numbers with units, as people read them. No LibTorch.
#pragma once

#include <string>

namespace gpipe {

// A number >= 0 in the largest unit of which it is at least one, with four
// digits at most: "0 B", "1.5 KiB", "98 MiB"; infinity is "unlimited". Units:
// B, KiB, MiB, GiB and TiB, of 1024 of the one before; us, ms and s.
//
// Threads: pure functions.
std::string bytes_text(double bytes);
std::string seconds_text(double seconds);

// A part of a whole: 0.125 is "12.5 %", or "12 %" without decimals.
std::string percent_text(double part, int decimals = 1);

}  // namespace gpipe
