// Timelines to be drawn beside each other.
#pragma once

#include <string>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// One of several timelines in a picture.
struct NamedTimeline {
  std::string name;  // any text: "predicted", "measured", ...
  Timeline timeline;
};

}  // namespace gpipe
