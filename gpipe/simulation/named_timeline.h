// A timeline with a name, for pictures of several timelines.
#pragma once

#include <string>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// One of the timelines of a picture.
struct NamedTimeline {
  std::string name;  // any text: "predicted", "measured", ...
  Timeline timeline;
};

}  // namespace gpipe
