#include "gpipe/simulation/simulate.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "gpipe/base/text.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/engine.h"
#include "gpipe/simulation/memory.h"

namespace gpipe {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// One simulation with shared cores.
class SharedRun {
 public:
  SharedRun(const Schedule& schedule, const Costs& costs, double cores,
            const std::vector<bool>& on_cores)
      : schedule_(schedule),
        durations_(internal::Engine(schedule, costs).durations()),
        cores_(cores),
        waits_for_(schedule.ranks),
        ranks_(schedule.ranks.size()) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].shares = on_cores.empty() || on_cores[r];
      for (const Action& action : schedule.ranks[r]) {
        waits_for_[action] = 1;
      }
    }
  }

  // Returns the spans of each rank. simulate() has checked that the schedule
  // can be executed.
  std::vector<std::vector<Span>> spans() {
    std::vector<std::vector<Span>> spans(ranks_.size());
    double now = 0;
    for (;;) {
      start_what_can(now);
      if (std::ranges::none_of(ranks_, &Rank::works)) return spans;
      const double step = until_next_end();
      const double speed = shared_speed();
      now += step;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        Rank& rank = ranks_[r];
        if (!rank.works) continue;
        rank.left -= step * (rank.shares ? speed : 1);
        const Action& action = schedule_.ranks[r][rank.next];
        // An action that ends now may have a small rest, from rounding.
        if (rank.left > kTrace * durations_.of(action)) continue;
        ++rank.next;
        if (is_compute(action.kind)) {
          spans[r].push_back({action, rank.start, now});
        }
        waits_for_[action] = 0;
        rank.works = false;
      }
    }
  }

 private:
  static constexpr double kTrace = 1e-12;

  struct Rank {
    bool shares = true;
    bool works = false;
    std::size_t next = 0;
    double start = 0, left = 0;  // seconds, of the current action
  };

  // Returns whether all that `action` needs is done. `beside`: the first action
  // of its block, for which it does not wait, or null.
  bool ready(const Action& action, const Action* beside) const {
    for (const Action& need : internal::needs(action)) {
      if (beside && need.stage == beside->stage && need.kind == beside->kind &&
          need.microbatch == beside->microbatch) {
        continue;
      }
      if (waits_for_.get(need) != 0) return false;
    }
    return true;
  }

  void start_what_can(double now) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      const auto& actions = schedule_.ranks[r];
      if (rank.works || rank.next == actions.size()) continue;
      const Action& action = actions[rank.next];
      if (!ready(action, nullptr)) continue;
      if (action.fused_with_next && !ready(actions[rank.next + 1], &action))
        continue;
      rank.works = true;
      rank.start = now;
      rank.left = durations_.of(action);
    }
  }

  // Returns the speed, 0 to 1, of the ranks that share the cores.
  double shared_speed() const {
    const auto busy = std::ranges::count_if(
        ranks_, [](const Rank& rank) { return rank.works && rank.shares; });
    return busy > cores_ ? cores_ / static_cast<double>(busy) : 1;
  }

  // Returns the seconds until the next action ends. A rank works.
  double until_next_end() const {
    const double speed = shared_speed();
    double least = kNever;
    for (const Rank& rank : ranks_) {
      if (!rank.works) continue;
      least =
          std::min(least, std::max(rank.left, 0.0) / (rank.shares ? speed : 1));
    }
    return least;
  }

  const Schedule& schedule_;
  const internal::Durations durations_;
  const double cores_;
  internal::ActionTable<char> waits_for_;  // 1: the action is not done
  std::vector<Rank> ranks_;
};

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  const internal::Engine engine(schedule, costs);
  return with_memory(engine.timeline(engine.durations()), costs);
}

Timeline simulate_on_cores(const Schedule& schedule, const Costs& costs,
                           double cores, const std::vector<bool>& on_cores) {
  if (!(cores > 0)) {
    internal::refuse("the number of cores is ", cores, ": it must be above 0");
  }
  if (!on_cores.empty() && on_cores.size() != schedule.ranks.size()) {
    internal::refuse("on_cores has ", on_cores.size(),
                     " entries, but the schedule has ", schedule.ranks.size(),
                     " ranks: give one for each rank, or none");
  }
  if (costs.latency > 0 || costs.bandwidth > 0 || costs.host_bandwidth > 0 ||
      costs.overlap > 0) {
    internal::refuse(
        "latency, bandwidth, host_bandwidth and overlap are not considered "
        "where ranks share cores: leave them 0, or use simulate()");
  }
  Timeline alone = simulate(schedule, costs);  // checks everything
  const auto sharing = on_cores.empty() ? std::ssize(schedule.ranks)
                                        : std::ranges::count(on_cores, true);
  if (cores >= static_cast<double>(sharing)) return alone;
  return timeline_of(SharedRun(schedule, costs, cores, on_cores).spans());
}

}  // namespace gpipe
