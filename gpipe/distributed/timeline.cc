#include "gpipe/distributed/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "gpipe/distributed/world/communicator.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

SharedClock::SharedClock(const std::shared_ptr<World>& world)
    : world_(internal::communicator_of(world)),
      channel_(world_->next_channel()),
      before_(measure()) {}

internal::ClockOffset SharedClock::measure() {
  return world_->reporting_failure("comparing the clocks", [&] {
    return internal::measure_clock(*world_, channel_);
  });
}

WholeTimeline SharedClock::gather(Timeline own) {
  const internal::ClockOffset after = measure();
  const internal::ClockOffset offset =
      internal::offset_at(before_, after, own.began);
  before_ = after;
  own.began += offset.seconds;
  // In nanoseconds, rounded up.
  const auto nanoseconds = static_cast<int64_t>(std::ceil(1e9 * offset.error));
  const int tag = internal::Tags(channel_).header;
  const std::string action = "gathering the timelines";
  WholeTimeline whole;
  // Two ranks may err by their errors in opposite directions.
  std::vector<double> errors;
  for (const std::string& each : internal::all_gather(
           *world_, tag, std::to_string(nanoseconds), action)) {
    errors.push_back(1e-9 * std::stod(each));
  }
  std::vector<std::vector<Timeline>> replicas;
  for (const std::string& each :
       internal::gather(*world_, tag, to_json(own), action)) {
    Timeline part = parse_timeline(each);
    // Each replica begins with its rank 0.
    if (replicas.empty() || part.first_rank == 0) replicas.emplace_back();
    replicas.back().push_back(std::move(part));
  }
  std::sort(errors.begin(), errors.end());
  for (std::size_t k = errors.size(); k-- > 0 && k + 2 >= errors.size();) {
    whole.clock_error += errors[k];
  }
  for (std::size_t k = 0; k < replicas.size(); ++k) {
    whole.replicas.push_back(
        {replicas.size() == 1 ? "pipeline" : "replica " + std::to_string(k),
         merge_timelines(std::move(replicas[k]))});
  }
  return whole;
}

}  // namespace gpipe
