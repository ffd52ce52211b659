#include "gpipe/schedule/order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "gpipe/schedule/needs.h"

namespace gpipe {
namespace {

using Key = std::tuple<int, Kind, int>;

Key key_of(const Action& action) {
  return {action.stage, action.kind, action.microbatch};
}

}  // namespace

std::vector<std::vector<int64_t>> clock_order(const Schedule& schedule) {
  // The clock at the end of every action, once it is known.
  std::map<Key, std::optional<int64_t>> end;
  std::size_t left = 0;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      end[key_of(action)];
    }
    left += actions.size();
  }

  const auto ranks = schedule.ranks.size();
  std::vector<std::vector<int64_t>> positions(ranks);
  std::vector<int64_t> rank_end(ranks, 0);
  while (left > 0) {
    const std::size_t before = left;
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto& actions = schedule.ranks[r];
      while (positions[r].size() < actions.size()) {
        const Action& action = actions[positions[r].size()];
        int64_t start = rank_end[r];
        bool ready = true;
        for (const Action& need : needs(action)) {
          auto found = end.find(key_of(need));
          if (found == end.end()) continue;
          ready = ready && found->second.has_value();
          start = std::max(start, found->second.value_or(0));
        }
        if (!ready) break;
        positions[r].push_back(start * static_cast<int64_t>(ranks) +
                               static_cast<int64_t>(r));
        rank_end[r] = start + 1;
        end[key_of(action)] = start + 1;
        --left;
      }
    }
    if (left < before) continue;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (positions[r].size() < schedule.ranks[r].size()) {
        throw std::invalid_argument(
            "the schedule cannot be executed: " +
            to_string(schedule.ranks[r][positions[r].size()]) + " of rank " +
            std::to_string(r) + " waits for an action that never ends");
      }
    }
  }
  return positions;
}

}  // namespace gpipe
