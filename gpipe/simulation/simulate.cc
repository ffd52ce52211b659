#include "gpipe/simulation/simulate.h"

#include <utility>

#include "gpipe/simulation/engine.h"
#include "gpipe/simulation/memory.h"

namespace gpipe {

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  const internal::Engine engine(schedule, costs);
  internal::Engine::Record record;
  engine.run(engine.durations(), &record);
  return with_memory(internal::to_timeline(std::move(record)), costs);
}

}  // namespace gpipe
