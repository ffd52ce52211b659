#include "models/exported/cuts.h"

#include <algorithm>
#include <cstddef>

#include "models/exported/cut_obstacles.h"

namespace gpipe::exported {

CrossingWalk::CrossingWalk(const Program& program, const Lives& lives)
    : program_(program),
      obstacles_(count_obstacles(find_obstacles(program, lives), lives)),
      begins_(program.nodes.size() + 2),
      ends_(program.nodes.size() + 2) {
  for (std::size_t k = 0; k < program.values.size(); ++k) {
    const auto id = static_cast<ValueId>(k);
    const Life& life = lives[id];
    if (life.end <= life.begin || !lives.is_passed(id) || lives.is_long(id) ||
        !program.values[k].is_tensor) {
      continue;
    }
    begins_[life.begin + 1].push_back(id);
    ends_[life.end + 1].push_back(id);
  }
}

void CrossingWalk::enter(int place) {
  place_ = place;
  crossing_.insert(begins_[place].begin(), begins_[place].end());
  for (const ValueId each : ends_[place]) crossing_.erase(each);
}

bool CrossingWalk::may_cut() const {
  return place_ > 0 && place_ < static_cast<int>(program_.nodes.size()) &&
         !program_.nodes[place_].pure && obstacles_[place_] == 0 &&
         !crossing_.empty();
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

std::string uncut_reason(const Program& program, const Lives& lives,
                         int64_t max_crossing) {
  CrossingWalk walk(program, lives);
  std::vector<int> places;  // with nodes that compute on both sides
  std::size_t fewest = program.values.size() + 1;
  bool computes = false;
  for (int k = 0; k < lives.nodes(); ++k) {
    walk.enter(k);
    if (computes && !program.nodes[k].pure) places.push_back(k);
    if (computes && walk.may_cut()) {
      fewest = std::min(fewest, walk.crossing().size());
    }
    computes = computes || !program.nodes[k].pure;
  }
  if (fewest <= program.values.size()) {
    if (static_cast<int64_t>(fewest) <= max_crossing) return "";
    return std::to_string(fewest) +
           " or more tensors cross at each place to cut, but max_crossing is " +
           std::to_string(max_crossing);
  }
  if (places.empty()) return "there are not two nodes that compute";
  const auto places_before = [&](int place) {
    return std::lower_bound(places.begin(), places.end(), place) -
           places.begin();
  };
  const std::vector<Obstacle> obstacles = find_obstacles(program, lives);
  const Obstacle* largest = nullptr;
  std::ptrdiff_t most = 0;
  for (const Obstacle& each : obstacles) {
    const auto covered =
        places_before(each.life.end + 1) - places_before(each.life.begin + 1);
    if (covered > most) {
      most = covered;
      largest = &each;
    }
  }
  if (!largest) return "no tensor crosses at any place";
  return text_of(program, *largest);
}

}  // namespace gpipe::exported
