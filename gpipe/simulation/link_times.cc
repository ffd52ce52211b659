#include "gpipe/simulation/link_times.h"

#include <algorithm>
#include <cstddef>

namespace gpipe::internal {

LinkTimes::LinkTimes(const std::vector<Link>& links,
                     const Disturbances* disturbances)
    : free_(links.size()) {
  if (!disturbances || disturbances->outages.empty()) return;
  outages_.resize(links.size());
  for (std::size_t k = 0; k < links.size(); ++k) {
    for (const Outage& outage : disturbances->outages) {
      if (outage.from == links[k].from && outage.to == links[k].to) {
        outages_[k].push_back(outage);
      }
    }
    std::ranges::sort(outages_[k], {}, &Outage::start);
  }
}

LinkTimes::Use LinkTimes::send(int link, double ready, double wire) {
  double& free = free_[link];
  Use use;
  use.start = std::max(ready, free);
  if (outages_.empty()) {
    use.sent = free = use.start + wire;
    return use;
  }
  const auto& outages = outages_[link];
  for (const Outage& outage : outages) {
    if (outage.start > use.start) break;
    use.start = std::max(use.start, outage.start + outage.seconds);
  }
  use.sent = use.start + wire;
  double counted = use.start;  // outages until then are part of `sent`
  for (const Outage& outage : outages) {
    if (outage.start >= use.sent) break;
    const double until = outage.start + outage.seconds;
    const double from = std::max(counted, outage.start);
    if (until <= from) continue;
    use.sent += until - from;
    counted = until;
  }
  free = use.sent;
  return use;
}

}  // namespace gpipe::internal
