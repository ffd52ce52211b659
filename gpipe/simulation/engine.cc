#include "gpipe/simulation/engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gpipe/base/text.h"
#include "gpipe/schedule/order.h"

namespace gpipe::internal {
namespace {

bool may_be_block(const Action& first, const Action& second) {
  return !second.fused_with_next && (is_late_recompute(first, second) ||
                                     may_overlap(first.kind, second.kind));
}

// Returns the costs of a kind of action, with the name of their list: seconds,
// or bytes of O and L.
std::pair<const char*, const std::vector<double>*> list_of(const Costs& costs,
                                                           ActionKind kind) {
  if (is_compute(kind)) {
    const auto& [name, list] = kActionCosts[static_cast<std::size_t>(kind)];
    return {name, &(costs.*list)};
  }
  return costs.offload_bytes.empty()
             ? std::pair("activation_bytes", &costs.activation_bytes)
             : std::pair("offload_bytes", &costs.offload_bytes);
}

}  // namespace

Engine::Engine(const Schedule& schedule, const Costs& costs)
    : schedule_(schedule),
      entries_(schedule.ranks),
      stage_rank_(entries_.stages(), -1) {
  check_costs(costs);
  place();
  check_blocks();
  look_up(costs);
  connect(costs);
}

// Marks all actions of the schedule as pending, and finds the rank of each
// stage.
void Engine::place() {
  for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
    for (const Action& action : schedule_.ranks[r]) {
      int& rank = stage_rank_[action.stage];
      Entry& entry = entries_[action];
      if (entry.arrival == kPending) {
        refuse(to_string(action), " is in the schedule twice, on rank ", rank,
               " and on rank ", r);
      }
      entry.arrival = kPending;
      if (rank >= 0 && rank != static_cast<int>(r)) {
        refuse("stage ", action.stage, " is on rank ", rank, " and, with ",
               to_string(action), ", on rank ", r,
               ": a stage must be on one rank");
      }
      rank = static_cast<int>(r);
    }
  }
}

void Engine::check_blocks() const {
  for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
    const auto& actions = schedule_.ranks[r];
    for (std::size_t k = 0; k < actions.size(); ++k) {
      if (!actions[k].fused_with_next) continue;
      const bool is_last = k + 1 == actions.size();
      if (!is_last && may_be_block(actions[k], actions[k + 1])) continue;
      refuse(
          to_string(actions[k]), " of rank ", r, " is in a block with ",
          is_last ? "nothing" : to_string(actions[k + 1]),
          ": a block is a forward with a B or I, or a recompute with its own "
          "B or I");
    }
  }
}

void Engine::look_up(const Costs& costs) {
  durations_.overlap = costs.overlap;
  auto& seconds = durations_.seconds;
  constexpr double kUnknown = -1;
  seconds.assign(stage_rank_.size() * Durations::kKinds, kUnknown);
  for (const auto& actions : schedule_.ranks) {
    for (const Action& action : actions) {
      double& entry =
          seconds[static_cast<std::size_t>(action.stage) * Durations::kKinds +
                  static_cast<std::size_t>(action.kind)];
      if (entry != kUnknown) continue;
      const bool copies = !is_compute(action.kind);
      if (copies && costs.host_bandwidth == 0) {
        entry = 0;
        continue;
      }
      const auto [name, list] = list_of(costs, action.kind);
      if (static_cast<std::size_t>(action.stage) >= list->size()) {
        refuse("there is no ", name, " cost of stage ", action.stage,
               ", which ", to_string(action), " needs (costs: ", list->size(),
               "): give one for each stage");
      }
      entry = (*list)[action.stage] / (copies ? costs.host_bandwidth : 1);
    }
  }
}

void Engine::connect(const Costs& costs) {
  const auto stages = stage_rank_.size();
  durations_.forward.resize(stages);
  durations_.backward.resize(stages);
  for (std::size_t s = 0; s + 1 < stages; ++s) {
    const int here = stage_rank_[s], next = stage_rank_[s + 1];
    if (here < 0 || next < 0 || here == next) continue;
    double wire = 0;
    if (costs.bandwidth > 0) {
      if (s >= costs.boundary_bytes.size()) {
        refuse("there is no boundary_bytes cost of stage ", s,
               ", which sends to stage ", s + 1,
               " on another rank (costs: ", costs.boundary_bytes.size(),
               "): a bandwidth needs bytes; a bandwidth of 0 is unlimited");
      }
      wire = costs.boundary_bytes[s] / costs.bandwidth;
    }
    durations_.forward[s] = {link_between(here, next), wire, costs.latency};
    durations_.backward[s + 1] = {link_between(next, here), wire,
                                  costs.latency};
  }
}

int Engine::link_between(int from, int to) {
  return links_.emplace(std::pair(from, to), links_.size()).first->second;
}

// ---- One run

// One run of an Engine. A rank runs until it waits for an action of another
// rank. That action wakes it.
class Engine::Run {
 public:
  Run(const Engine& engine, const Durations& durations, Timeline* record)
      : engine_(engine),
        durations_(durations),
        record_(record),
        entries_(engine.entries_),
        ranks_(engine.schedule_.ranks.size()),
        link_free_(engine.links_.size()) {
    if (!record_) return;
    if (has_kind(engine.schedule_, ActionKind::kOffload) ||
        has_kind(engine.schedule_, ActionKind::kReload)) {
      record_->host_copies.resize(ranks_.size());
    }
    record_->ranks.resize(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      record_->ranks[r].reserve(actions_of(r).size());
    }
  }

  double makespan() {
    for (std::size_t r = ranks_.size(); r-- > 0;) awake_.push_back(r);
    while (!awake_.empty()) {
      const std::size_t rank = awake_.back();
      awake_.pop_back();
      while (ranks_[rank].done < actions_of(rank).size() && step(rank)) {
      }
    }
    double makespan = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].done < actions_of(r).size()) report_stuck(r);
      makespan = std::max(makespan, ranks_[r].end);
    }
    return makespan;
  }

 private:
  struct Rank {
    std::size_t done = 0;     // number of completed actions
    std::size_t copies = 0;   // number of O and L among them
    double end = 0;           // end of the last other one
    double to_host_free = 0;  // when the links with the host are free
    double from_host_free = 0;
  };

  const std::vector<Action>& actions_of(std::size_t rank) const {
    return engine_.schedule_.ranks[rank];
  }

  // Runs the next action, or block, of `rank`. Returns false if it has to wait.
  bool step(std::size_t rank) {
    const Action& first = actions_of(rank)[ranks_[rank].done];
    double start = ranks_[rank].end;
    const auto has_to_wait = [&](const Action& action) {
      Entry* const missing = wait_for(action, first, &start);
      if (missing) missing->waiter = static_cast<int>(rank);
      return missing != nullptr;
    };
    if (has_to_wait(first)) return false;
    if (!is_compute(first.kind)) {
      copy(first, rank, start);
      return true;
    }
    if (!first.fused_with_next) {
      finish(first, rank, start, start + durations_.of(first));
      return true;
    }
    const Action& second = actions_of(rank)[ranks_[rank].done + 1];
    if (has_to_wait(second)) return false;
    const double a = durations_.of(first), b = durations_.of(second);
    if (first.kind == ActionKind::kRecompute) {
      finish(first, rank, start, start + a);
      finish(second, rank, start + a, start + a + b);
    } else {
      const double end = start + a + b - durations_.overlap * std::min(a, b);
      finish(first, rank, start, end);
      finish(second, rank, start, end);
    }
    return true;
  }

  // Delays `start` until all inputs of `action` have arrived. Returns an action
  // that it needs and that has not run, or null. `first`: the first action of
  // its block.
  Entry* wait_for(const Action& action, const Action& first, double* start) {
    for (const Action& need : needs(action)) {
      Entry* const entry = entries_.find(need);
      if (!entry) continue;
      if (entry->arrival == kPending) {
        const bool in_block = need.kind == ActionKind::kRecompute &&
                              first.kind == ActionKind::kRecompute &&
                              first.fused_with_next;
        if (!in_block) return entry;
      } else if (need.stage != action.stage || !is_compute(need.kind)) {
        *start = std::max(*start, entry->arrival);
      }  // Otherwise it ran earlier on this rank.
    }
    return nullptr;
  }

  // Begins a copy to or from the host, at `start` or when its link is free. The
  // rank goes on beside it.
  void copy(const Action& action, std::size_t rank, double start) {
    Rank& state = ranks_[rank];
    double& free = action.kind == ActionKind::kOffload ? state.to_host_free
                                                       : state.from_host_free;
    start = std::max(start, free);
    free = start + durations_.of(action);
    if (record_) {
      record_->host_copies[rank].push_back(
          {action, state.done - state.copies, start, free});
    }
    ++state.done;
    ++state.copies;
    entries_[action].arrival = free;
  }

  void finish(const Action& action, std::size_t rank, double start,
              double end) {
    ++ranks_[rank].done;
    ranks_[rank].end = end;
    if (record_) record_->ranks[rank].push_back({action, start, end});
    Entry& entry = entries_[action];
    entry.arrival = arrival(action, end);
    if (entry.waiter >= 0) awake_.push_back(entry.waiter);
  }

  // Returns when the output of `action` arrives at the neighbouring stage.
  double arrival(const Action& action, double end) {
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && !begins_backward(action.kind)) return end;
    const Route& route =
        (forward ? durations_.forward : durations_.backward)[action.stage];
    if (route.link < 0 || !is_needed(action)) return end;
    double& free = link_free_[route.link];
    const double start = std::max(end, free), sent = start + route.wire;
    free = sent;
    const double there = sent + route.delay;
    if (record_ && there > end) {
      const int next = action.stage + (forward ? 1 : -1);
      record_->transfers.push_back({action, engine_.stage_rank_[action.stage],
                                    engine_.stage_rank_[next], start, sent,
                                    there});
    }
    return there;
  }

  // Returns whether a neighbouring stage uses the output of `action`.
  bool is_needed(const Action& action) const {
    const int i = action.microbatch;
    if (action.kind == ActionKind::kForward) {
      return is_pending({action.stage + 1, ActionKind::kForward, i});
    }
    return is_pending({action.stage - 1, ActionKind::kBackward, i}) ||
           is_pending({action.stage - 1, ActionKind::kBackwardInput, i});
  }

  bool is_pending(const Action& action) const {
    return entries_.get(action).arrival == kPending;
  }

  [[noreturn]] void report_stuck(std::size_t rank) {
    const auto& actions = actions_of(rank);
    const std::size_t next = ranks_[rank].done;
    const std::size_t block = actions[next].fused_with_next ? 2 : 1;
    for (std::size_t k = next; k < next + block; ++k) {
      for (const Action& need : needs(actions[k])) {
        if (!is_pending(need)) continue;
        if (k > next && need.kind == ActionKind::kRecompute) continue;
        refuse("the schedule cannot be executed: ", to_string(actions[k]),
               " of rank ", rank, " waits for ", to_string(need),
               ", which never ends: look for it further down this rank, or for "
               "ranks that wait for each other");
      }
    }
    throw std::logic_error("a rank waits for nothing");
  }

  const Engine& engine_;
  const Durations& durations_;
  Timeline* const record_;
  ActionTable<Entry> entries_;
  std::vector<Rank> ranks_;
  std::vector<double> link_free_;  // when each link is free, in seconds
  std::vector<std::size_t> awake_;
};

double Engine::makespan(const Durations& durations) const {
  return Run(*this, durations, /*record=*/nullptr).makespan();
}

Timeline Engine::timeline(const Durations& durations) const {
  Timeline record;
  Run(*this, durations, &record).makespan();
  Timeline timeline = timeline_of(std::move(record.ranks));
  timeline.transfers = std::move(record.transfers);
  timeline.host_copies = std::move(record.host_copies);
  return timeline;
}

}  // namespace gpipe::internal
