#include "exported/cuts.h"

#include <cstddef>

#include "exported/cut_obstacles.h"

namespace gpipe::exported {

CrossingWalk::CrossingWalk(const Program& program, const Lives& lives)
    : program_(program),
      obstacles_(count_obstacles(program, lives)),
      events_(program.nodes.size() + 2),
      carriers_(program.symbols.size()),
      needed_(program.symbols.size()) {
  for (std::size_t k = 0; k < program.values.size(); ++k) {
    const auto id = static_cast<ValueId>(k);
    if (lives.is_passed(id) && program.values[k].is_tensor &&
        !lives.is_long(id)) {
      add(lives[id], Event::Kind::kCrosses, Event::Kind::kEnds, id);
    }
  }
  for (const Node& node : program.nodes) {
    if (!lives.is_known_size(node)) continue;
    const Extent& extent = *size_extent(program, node);
    if (extent.symbol == Extent::kNone) continue;
    add({lives[node.reads[0]].begin, lives.last_read(node)},
        Event::Kind::kNeeded, Event::Kind::kNotNeeded, extent.symbol);
  }
}

void CrossingWalk::enter(int place) {
  place_ = place;
  for (const Event& event : events_[place]) apply(event);
}

bool CrossingWalk::may_cut() const {
  return place_ > 0 && place_ < static_cast<int>(program_.nodes.size()) &&
         !program_.nodes[place_].pure && obstacles_[place_] == 0 &&
         !crossing_.empty() && missing_ == 0;
}

void CrossingWalk::add(const Life& life, Event::Kind begin, Event::Kind end,
                       int number) {
  if (life.end <= life.begin) return;
  events_[life.begin + 1].push_back({begin, number});
  events_[life.end + 1].push_back({end, number});
}

void CrossingWalk::apply(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kCrosses:
      crossing_.insert(event.number);
      carry(event.number, 1);
      break;
    case Event::Kind::kEnds:
      crossing_.erase(event.number);
      carry(event.number, -1);
      break;
    case Event::Kind::kNeeded:
      change(needed_, event.number, 1);
      break;
    case Event::Kind::kNotNeeded:
      change(needed_, event.number, -1);
      break;
  }
}

void CrossingWalk::carry(ValueId value, int by) {
  for (const Extent& each : program_.values[value].sizes) {
    if (each.symbol != Extent::kNone) change(carriers_, each.symbol, by);
  }
}

void CrossingWalk::change(std::vector<int>& counts, int symbol, int by) {
  const auto is_missing = [&] {
    return needed_[symbol] > 0 && carriers_[symbol] == 0;
  };
  missing_ -= is_missing();
  counts[symbol] += by;
  missing_ += is_missing();
}

std::vector<Cut> find_cuts(const Program& program, const Lives& lives,
                           int64_t max_crossing) {
  std::vector<Cut> cuts;
  CrossingWalk walk(program, lives);
  bool computes = false;  // since the last cut
  for (int k = 0; k < lives.nodes(); ++k) {
    walk.enter(k);
    if (computes && walk.may_cut() &&
        static_cast<int64_t>(walk.crossing().size()) <= max_crossing) {
      cuts.push_back({k, {walk.crossing().begin(), walk.crossing().end()}});
      computes = false;
    }
    computes = computes || !program.nodes[k].pure;
  }
  return cuts;
}

}  // namespace gpipe::exported
