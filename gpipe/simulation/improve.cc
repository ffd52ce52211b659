#include "gpipe/simulation/improve.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/simulation/engine.h"
#include "gpipe/text/refuse.h"

namespace gpipe {
namespace {

// Multiplies the times of copies over `link` by `factor`. Returns whether a
// copy over it takes time.
bool scale(std::vector<internal::Route>* routes, int link, double factor) {
  bool takes_time = false;
  for (internal::Route& route : *routes) {
    if (route.link != link) continue;
    takes_time = takes_time || route.wire > 0 || route.delay > 0;
    route.wire *= factor;
    route.delay *= factor;
  }
  return takes_time;
}

}  // namespace

std::vector<Improvement> improve_first(const Schedule& schedule,
                                       const Costs& costs, double part) {
  if (!(part >= 0 && part <= 1)) {
    internal::refuse("improve_first: part is ", part,
                     ", but must be from 0 to 1");
  }
  const internal::Engine engine(schedule, costs);
  const double now = engine.run(engine.durations(), nullptr);
  std::vector<Improvement> result;
  for (std::size_t stage = 0; stage < engine.stages(); ++stage) {
    if (!engine.has_stage(stage)) continue;
    internal::Durations faster = engine.durations();
    for (std::size_t k = 0; k < internal::Durations::kKinds; ++k) {
      if (!is_compute(static_cast<ActionKind>(k))) continue;
      faster.seconds[stage * internal::Durations::kKinds + k] *= 1 - part;
    }
    result.push_back(
        {static_cast<int>(stage), -1, -1, now - engine.run(faster, nullptr)});
  }
  for (std::size_t link = 0; link < engine.links().size(); ++link) {
    internal::Durations faster = engine.durations();
    const int number = static_cast<int>(link);
    const bool forward = scale(&faster.forward, number, 1 - part);
    const bool backward = scale(&faster.backward, number, 1 - part);
    if (!forward && !backward) continue;
    const auto [from, to] = engine.links()[link];
    result.push_back({-1, from, to, now - engine.run(faster, nullptr)});
  }
  std::ranges::stable_sort(result, std::ranges::greater(),
                           &Improvement::seconds);
  return result;
}

}  // namespace gpipe
