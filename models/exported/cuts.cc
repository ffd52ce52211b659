#include "models/exported/cuts.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <unordered_map>

namespace gpipe::exported {

// ---- Lives

namespace {

constexpr int kLongLife = 32;  // nodes
constexpr int kLongShare = 4;  // one in this many nodes

}  // namespace

Lives::Lives(const Program& program)
    : program_(program),
      nodes_(static_cast<int>(program.nodes.size())),
      lives_(program.values.size()),
      computed_(program.nodes.size() + 1) {
  for (int k = 0; k < nodes_; ++k) {
    computed_[k + 1] = computed_[k] + !program.nodes[k].pure;
  }
  for (std::size_t k = 0; k < lives_.size(); ++k) {
    lives_[k].begin = program.values[k].producer;
  }
  for (const ValueId each : program.outputs) lives_[each].end = nodes_;
  // A pure node runs where its results are read, and so reads there.
  for (int k = nodes_; k-- > 0;) {
    const Node& node = program.nodes[k];
    const int at = node.pure ? last_read(node) : k;
    if (is_known_size(node)) continue;
    for (const ValueId each : node.reads) {
      lives_[each].end = std::max(lives_[each].end, at);
    }
  }
}

bool Lives::is_passed(ValueId id) const {
  const Value& value = program_.values[id];
  return value.origin == Origin::kInput ||
         (value.producer >= 0 && !program_.nodes[value.producer].pure);
}

bool Lives::is_long(ValueId value) const {
  const Life& life = lives_[value];
  const int length =
      computed_[std::max(life.end, 0)] - computed_[life.begin + 1];
  return length > kLongLife && length > computed_[nodes_] / kLongShare;
}

bool Lives::is_known_size(const Node& node) const {
  return node.pure && size_extent(program_, node) && is_passed(node.reads[0]);
}

int Lives::last_read(const Node& node) const {
  int last = -1;
  for_each_result(
      node, [&](ValueId each) { last = std::max(last, lives_[each].end); });
  return last;
}

// ---- Obstacles

namespace {

std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot + 1);
}

// Returns the values that have a gradient in training: those computed from
// parameters.
std::vector<bool> differentiable(const Program& program) {
  std::vector<bool> found(program.values.size());
  for (std::size_t k = 0; k < found.size(); ++k) {
    const Value& value = program.values[k];
    found[k] = value.weight >= 0 && program.weights[value.weight].requires_grad;
  }
  for (const Node& node : program.nodes) {
    if (program.regions[node.region].no_grad) continue;
    bool any = false;
    for (const ValueId each : node.reads) any = any || found[each];
    for_each_result(node, [&](ValueId each) {
      const auto& dtype = program.values[each].dtype;
      found[each] = any && (!dtype || c10::isFloatingType(*dtype) ||
                            c10::isComplexType(*dtype));
    });
  }
  return found;
}

// Returns the last node that changes each memory, by the value that owns the
// memory; -1 for none.
std::vector<int> last_writes(const Program& program) {
  std::vector<int> last(program.values.size(), -1);
  for (std::size_t k = 0; k < program.nodes.size(); ++k) {
    for (const ValueId each : program.nodes[k].writes) {
      last[program.values[each].memory] = static_cast<int>(k);
    }
  }
  return last;
}

// Adds the values that are alive at a place and cannot cross there.
void add_values(const Program& program, const Lives& lives,
                std::vector<Obstacle>& obstacles) {
  const std::vector<bool> has_gradient = differentiable(program);
  const std::vector<int> last_write = last_writes(program);
  for (std::size_t k = 0; k < program.values.size(); ++k) {
    const auto id = static_cast<ValueId>(k);
    const Value& value = program.values[k];
    if (!lives.is_passed(id)) continue;
    Obstacle obstacle{Obstacle::Kind::kNumber, id, lives[id]};
    // A slice with a gradient would have other strides after a message, and
    // its gradient other bits.
    if (value.is_tensor && !value.dense && has_gradient[k]) {
      obstacle.kind = Obstacle::Kind::kSlice;
    } else if (value.is_tensor) {
      obstacle.kind = Obstacle::Kind::kChange;
      obstacle.life.end = std::min(obstacle.life.end, last_write[value.memory]);
    }
    obstacles.push_back(obstacle);
  }
}

// Returns the value that stands for each memory. The buffers of a norm belong
// together, and the running mean stands for them. Any other memory stands for
// itself.
std::vector<ValueId> group_statistics(const Program& program) {
  std::unordered_map<std::string, ValueId> by_name;
  std::vector<ValueId> group(program.values.size());
  for (std::size_t k = 0; k < program.values.size(); ++k) {
    const Value& value = program.values[k];
    group[k] = value.memory;
    if (value.weight >= 0) {
      by_name.emplace(program.weights[value.weight].name,
                      static_cast<ValueId>(k));
    }
  }
  for (const Node& node : program.nodes) {
    if (node.running_mean == kNoValue) continue;
    const ValueId mean = program.values[node.running_mean].memory;
    if (node.running_var != kNoValue) {
      group[program.values[node.running_var].memory] = mean;
    }
    const Value& value = program.values[mean];
    if (value.weight < 0) continue;
    const auto batches = by_name.find(
        parent_of(program.weights[value.weight].name) + "num_batches_tracked");
    if (batches != by_name.end()) group[batches->second] = mean;
  }
  return group;
}

// Adds the weights that change, from their first use to their last one.
void add_changing_weights(const Program& program,
                          std::vector<Obstacle>& obstacles) {
  const std::vector<ValueId> group = group_statistics(program);
  std::vector<bool> changes(program.values.size());
  std::map<ValueId, Life> spans;
  for (std::size_t k = 0; k < program.nodes.size(); ++k) {
    const Node& node = program.nodes[k];
    const int place = static_cast<int>(k);
    const auto touch = [&](ValueId each) {
      const ValueId memory = program.values[each].memory;
      const Origin origin = program.values[memory].origin;
      if (origin != Origin::kBuffer && origin != Origin::kParameter) return;
      spans.try_emplace(group[memory], Life{place, place}).first->second.end =
          place;
    };
    for (const ValueId each : node.reads) touch(each);
    for (const ValueId each : node.writes) {
      touch(each);
      changes[group[program.values[each].memory]] = true;
    }
  }
  // The last layer returns outputs, and a layer reads its own weights.
  for (const ValueId each : program.outputs) {
    const auto found = spans.find(group[each]);
    if (found == spans.end() || program.values[each].weight < 0) continue;
    found->second.end = static_cast<int>(program.nodes.size());
  }
  for (const auto& [memory, span] : spans) {
    if (changes[memory]) {
      obstacles.push_back({Obstacle::Kind::kBuffer, memory, span});
    }
  }
}

// Returns the name of a weight in Python, or of a value in the file.
const std::string& name_of(const Program& program, ValueId id) {
  const Value& value = program.values[id];
  return value.weight < 0 ? value.name : program.weights[value.weight].name;
}

}  // namespace

std::vector<Obstacle> find_obstacles(const Program& program,
                                     const Lives& lives) {
  std::vector<Obstacle> obstacles;
  add_values(program, lives, obstacles);
  add_changing_weights(program, obstacles);
  std::erase_if(obstacles, [](const Obstacle& each) {
    return each.life.end <= each.life.begin;
  });
  return obstacles;
}

std::vector<int> count_obstacles(const std::vector<Obstacle>& obstacles,
                                 const Lives& lives) {
  std::vector<int> counts(lives.nodes() + 2);
  for (const Obstacle& each : obstacles) {
    ++counts[each.life.begin + 1];
    --counts[each.life.end + 1];
  }
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  counts.resize(lives.nodes());
  return counts;
}

std::string text_of(const Program& program, const Obstacle& obstacle) {
  const auto place = [&](int node) {
    return node < 0 ? std::string("the inputs")
           : node < static_cast<int>(program.nodes.size())
               ? place_of(program.nodes[node])
               : std::string("the outputs");
  };
  const char* reason = "";
  switch (obstacle.kind) {
    case Obstacle::Kind::kNumber:
      reason = "a number that is computed from tensors cannot cross a cut";
      break;
    case Obstacle::Kind::kChange:
      reason = "a tensor cannot cross a cut before it is changed in place";
      break;
    case Obstacle::Kind::kSlice:
      reason =
          "a slice of a larger tensor cannot cross a cut if it has a gradient";
      break;
    case Obstacle::Kind::kBuffer:
      reason =
          "all uses of a buffer that changes must be on the same side of a cut";
      break;
  }
  return std::string(reason) + ": '" + name_of(program, obstacle.value) +
         "', from " + place(obstacle.life.begin) + " to " +
         place(obstacle.life.end);
}

// ---- Cuts

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

std::string uncut_reason(const Program& program, int64_t max_crossing) {
  const Lives lives(program);
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
