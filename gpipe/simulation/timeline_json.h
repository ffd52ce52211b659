// Timelines as JSON, to send or to store them.
#pragma once

#include <string>
#include <string_view>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// to_json() returns a timeline as JSON, in which all numbers are exact: spans,
// copies and memory as they are in Timeline, in seconds and bytes.
// parse_timeline() is the reverse, and computes makespan, idle times and
// micro-batches in flight again, as timeline_of() does. It throws
// std::invalid_argument if `text` is no such JSON, also if a number is not
// finite, and in the cases of timeline_of(). (A picture for trace viewers is
// to_chrome_trace().) Complexity: O(n) for n spans, copies and points. Threads:
// pure functions.
std::string to_json(const Timeline& timeline);
Timeline parse_timeline(std::string_view text);

}  // namespace gpipe
