#include "gpipe/simulation/simulate.h"

#include <utility>

#include "gpipe/simulation/engine.h"
#include "gpipe/simulation/memory.h"

namespace gpipe {

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  return simulate(schedule, costs, Disturbances{});
}

Timeline simulate(const Schedule& schedule, const Costs& costs,
                  const Disturbances& disturbances) {
  check_disturbances(disturbances, schedule.ranks.size());
  const internal::Engine engine(schedule, costs);
  internal::Engine::Record record;
  engine.run(engine.durations(), &record, &disturbances);
  Timeline timeline = timeline_of(std::move(record.ranks));
  timeline.transfers = std::move(record.transfers);
  timeline.host_copies = std::move(record.host_copies);
  return with_memory(std::move(timeline), costs);
}

}  // namespace gpipe
