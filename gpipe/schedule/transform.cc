#include "gpipe/schedule/transform.h"

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

bool is_backward(ActionKind kind) {
  return internal::begins_backward(kind) || kind == ActionKind::kBackwardWeight;
}

// Returns the position of the first action of the block that has actions[k].
std::size_t block_begin(const std::vector<Action>& actions, std::size_t k) {
  while (k > 0 && actions[k - 1].fused_with_next) --k;
  return k;
}

// A stage and a micro-batch.
using CellKey = std::pair<int, int>;
CellKey cell_of(const Action& action) {
  return {action.stage, action.microbatch};
}

// Returns the position of the action after which each cell holds what its
// backward needs: R, or F if there is no R. Leaves out cells with an O or L.
std::map<CellKey, std::size_t> graphs_of(const std::vector<Action>& actions) {
  std::map<CellKey, std::size_t> graphs;
  for (std::size_t k = 0; k < actions.size(); ++k) {
    const ActionKind kind = actions[k].kind;
    if (kind == ActionKind::kForward) graphs.emplace(cell_of(actions[k]), k);
    if (kind == ActionKind::kRecompute) graphs[cell_of(actions[k])] = k;
  }
  for (const Action& action : actions) {
    if (!is_compute(action.kind)) graphs.erase(cell_of(action));
  }
  return graphs;
}

// Returns the position before which the copy back for the backward actions[k]
// begins: `ahead` actions of computation before the backward's block, but not
// before `earliest`, and not inside a block.
std::size_t reload_place(const std::vector<Action>& actions, std::size_t k,
                         int ahead, std::size_t earliest) {
  std::size_t place = block_begin(actions, k);
  for (int left = ahead; left > 0 && place > earliest;) {
    --place;
    if (is_compute(actions[place].kind)) --left;
  }
  return block_begin(actions, place);
}

// Returns the earliest position for the recompute of the backward actions[k].
// That is after the previous backward, after the micro-batch's own forward, and
// not inside a block.
std::size_t ahead_of(const std::vector<Action>& actions, std::size_t k) {
  const Action& backward = actions[k];
  std::size_t place = block_begin(actions, k);
  while (place > 0) {
    const Action& before = actions[place - 1];
    if (is_backward(before.kind)) break;
    if (before.kind == ActionKind::kForward && before.stage == backward.stage &&
        before.microbatch == backward.microbatch) {
      break;
    }
    --place;
  }
  while (place > 0 && actions[place - 1].fused_with_next) ++place;
  return place;
}

}  // namespace

Schedule with_recompute(const Schedule& schedule,
                        const std::function<bool(int microbatch)>& checkpointed,
                        RecomputePlacement placement) {
  return with_recompute(
      schedule, [&](int, int microbatch) { return checkpointed(microbatch); },
      placement);
}

Schedule with_recompute(
    const Schedule& schedule,
    const std::function<bool(int stage, int microbatch)>& checkpointed,
    RecomputePlacement placement) {
  Schedule result;
  for (const auto& actions : schedule.ranks) {
    // before[k] has the recomputes that are inserted right before actions[k].
    std::vector<std::vector<Action>> before(actions.size());
    std::set<CellKey> recomputed;
    for (std::size_t k = 0; k < actions.size(); ++k) {
      const Action& action = actions[k];
      if (!internal::begins_backward(action.kind) ||
          !checkpointed(action.stage, action.microbatch)) {
        continue;
      }
      const std::size_t begin = block_begin(actions, k);
      const bool in_block = placement == RecomputePlacement::kWithBackward &&
                            begin == k && !action.fused_with_next;
      const std::size_t place = placement == RecomputePlacement::kAhead
                                    ? ahead_of(actions, k)
                                    : begin;
      before[place].push_back(
          {action.stage, ActionKind::kRecompute, action.microbatch, in_block});
      recomputed.insert(cell_of(action));
    }
    auto& out = result.ranks.emplace_back();
    for (std::size_t k = 0; k < actions.size(); ++k) {
      out.insert(out.end(), before[k].begin(), before[k].end());
      const bool stays = is_compute(actions[k].kind) ||
                         recomputed.count(cell_of(actions[k])) == 0;
      if (stays) out.push_back(actions[k]);
    }
  }
  return result;
}

Schedule with_offload(
    Schedule schedule,
    const std::function<bool(int stage, int microbatch)>& which, int ahead) {
  if (ahead < 0) {
    internal::refuse("with_offload: ahead is ", ahead,
                     ", but it is a number of actions, 0 or more");
  }
  for (auto& actions : schedule.ranks) {
    const auto graphs = graphs_of(actions);
    // Inserted right before actions[k], or at the end: first O, then L.
    std::vector<std::optional<Action>> offloads(actions.size() + 1);
    std::vector<std::vector<Action>> reloads(actions.size() + 1);
    for (std::size_t k = 0; k < actions.size(); ++k) {
      if (!internal::begins_backward(actions[k].kind)) continue;
      const auto graph = graphs.find(cell_of(actions[k]));
      if (graph == graphs.end()) continue;
      const std::size_t begin = internal::block_end(actions, graph->second);
      const auto [stage, microbatch] = graph->first;
      if (begin > k || !which(stage, microbatch)) continue;
      offloads[begin] = {stage, ActionKind::kOffload, microbatch};
      reloads[reload_place(actions, k, ahead, begin)].push_back(
          {stage, ActionKind::kReload, microbatch});
    }
    std::vector<Action> out;
    for (std::size_t k = 0; k <= actions.size(); ++k) {
      if (offloads[k]) out.push_back(*offloads[k]);
      out.insert(out.end(), reloads[k].begin(), reloads[k].end());
      if (k < actions.size()) out.push_back(actions[k]);
    }
    actions = std::move(out);
  }
  return schedule;
}

std::function<bool(int stage, int microbatch)> distant_cells(
    const Schedule& schedule, int actions) {
  std::set<CellKey> cells;
  for (const auto& rank : schedule.ranks) {
    std::map<CellKey, int>
        graphs;  // the count of actions at which each is made
    int count = 0;
    for (const Action& action : rank) {
      if (!is_compute(action.kind)) continue;
      const auto graph = graphs.find(cell_of(action));
      if (internal::begins_backward(action.kind) && graph != graphs.end() &&
          count - graph->second >= actions) {
        cells.insert(graph->first);
      }
      ++count;
      const bool makes = action.kind == ActionKind::kForward ||
                         action.kind == ActionKind::kRecompute;
      if (makes) graphs[cell_of(action)] = count;
    }
  }
  return [cells = std::move(cells)](int stage, int microbatch) {
    return cells.count({stage, microbatch}) > 0;
  };
}

Schedule select(const Schedule& schedule,
                const std::function<bool(const Action&)>& keep) {
  Schedule result;
  for (const auto& actions : schedule.ranks) {
    auto& out = result.ranks.emplace_back();
    bool previous_kept = false;
    for (const Action& action : actions) {
      const bool kept = keep(action);
      if (!kept && previous_kept) out.back().fused_with_next = false;
      if (kept) out.push_back(action);
      previous_kept = kept;
    }
  }
  return result;
}

}  // namespace gpipe
