// The times at which the links between ranks are free.
#pragma once

#include <vector>

#include "gpipe/simulation/disturbances.h"

namespace gpipe::internal {

// A link from one rank to another.
struct Link {
  int from = 0, to = 0;
};

// The links of one simulation. Each makes its copies one after the other, and
// none during its outages. Threads: one at a time.
class LinkTimes {
 public:
  // `disturbances`: checked, or null.
  LinkTimes(const std::vector<Link>& links, const Disturbances* disturbances);

  // When a copy occupies a link, in seconds.
  struct Use {
    double start = 0, sent = 0;
  };

  // Makes a copy that is ready at `ready` and needs `wire` seconds of link
  // number `link`.
  Use send(int link, double ready, double wire);

 private:
  std::vector<double> free_;
  // Per link, by their starts. Empty if no link has an outage.
  std::vector<std::vector<Outage>> outages_;
};

}  // namespace gpipe::internal
