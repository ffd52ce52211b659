// Timelines as JSON, to send or to store them.
#pragma once

#include <string>
#include <string_view>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// to_json() returns a timeline as JSON, in which all numbers are exact.
// parse_timeline() is the reverse; it throws std::invalid_argument if `text` is
// no such JSON, or in the cases of timeline_of(). (A picture for trace viewers
// is to_chrome_trace().) Threads: pure functions.
std::string to_json(const Timeline& timeline);
Timeline parse_timeline(std::string_view text);

}  // namespace gpipe
