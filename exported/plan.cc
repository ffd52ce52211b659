#include "exported/plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace gpipe::exported {
namespace {

constexpr int kLongLife = 32;  // nodes
constexpr int kLongShare = 4;  // one in this many nodes

// From the node that computes a value to the last one that reads it. A cut
// before node c with begin < c <= end separates them.
struct Life {
  int begin = -1;
  int end = -1;
};

// A count for each place, built from intervals in constant time each.
class Counts {
 public:
  explicit Counts(std::size_t places) : changes_(places + 2) {}
  // Adds 1 to the places begin + 1, ..., end.
  void add(const Life& life) {
    if (life.end <= life.begin) return;
    ++changes_[life.begin + 1];
    --changes_[life.end + 1];
  }
  std::vector<int> sums() const {
    std::vector<int> sums(changes_);
    for (std::size_t k = 1; k < sums.size(); ++k) sums[k] += sums[k - 1];
    return sums;
  }

 private:
  std::vector<int> changes_;
};

// The lives of all values of a program.
class Lives {
 public:
  explicit Lives(const Program& program)
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

  const Life& operator[](ValueId value) const { return lives_[value]; }
  int nodes() const { return nodes_; }

  // Returns whether a value is computed once and passed on. Other values are
  // weights, or are computed again.
  bool is_passed(ValueId id) const {
    const Value& value = program_.values[id];
    return value.origin == Origin::kInput ||
           (value.producer >= 0 && !program_.nodes[value.producer].pure);
  }

  bool is_long(ValueId value) const {
    const Life& life = lives_[value];
    const int length =
        computed_[std::max(life.end, 0)] - computed_[life.begin + 1];
    return length > kLongLife && length > computed_[nodes_] / kLongShare;
  }

  // Returns whether `node` reads the size of a tensor that is passed on, so
  // that any tensor with that size will do.
  bool is_known_size(const Node& node) const {
    return node.pure && size_extent(program_, node) && is_passed(node.reads[0]);
  }

  // Returns the last node that reads a result of `node`.
  int last_read(const Node& node) const {
    int last = -1;
    for (const Result& result : node.results) {
      for (const ValueId each : result.values) {
        if (each != kNoValue) last = std::max(last, lives_[each].end);
      }
    }
    return last;
  }

 private:
  const Program& program_;
  const int nodes_;
  std::vector<Life> lives_;
  std::vector<int> computed_;  // nodes before a place that are not pure
};

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
    for (const Result& result : node.results) {
      for (const ValueId each : result.values) {
        if (each == kNoValue) continue;
        const auto& dtype = program.values[each].dtype;
        found[each] = any && (!dtype || c10::isFloatingType(*dtype) ||
                              c10::isComplexType(*dtype));
      }
    }
  }
  return found;
}

// Counts the reasons against a cut at each place that do not depend on what
// else crosses there.
std::vector<int> obstacles(const Program& program, const Lives& lives) {
  Counts counts(program.nodes.size());
  const std::vector<bool> has_gradient = differentiable(program);
  // The last change of each memory.
  std::vector<int> last_write(program.values.size(), -1);
  for (int k = 0; k < lives.nodes(); ++k) {
    for (const ValueId each : program.nodes[k].writes) {
      last_write[program.values[each].memory] = k;
    }
  }
  for (std::size_t k = 0; k < program.values.size(); ++k) {
    const auto id = static_cast<ValueId>(k);
    if (!lives.is_passed(id)) continue;
    Life life = lives[id];
    // A number cannot cross. A tensor cannot before its last change. A slice
    // with a gradient would have other strides after a message, and its
    // gradient other bits.
    if (program.values[k].is_tensor &&
        (program.values[k].dense || !has_gradient[k])) {
      life.end = std::min(life.end, last_write[program.values[k].memory]);
    }
    counts.add(life);
  }
  // The buffers of a norm belong together, and to the first of them.
  std::unordered_map<std::string, ValueId> by_name;
  for (std::size_t k = 0; k < program.values.size(); ++k) {
    const Value& value = program.values[k];
    if (value.weight >= 0) {
      by_name.emplace(program.weights[value.weight].name,
                      static_cast<ValueId>(k));
    }
  }
  std::vector<ValueId> group(program.values.size());
  for (std::size_t k = 0; k < group.size(); ++k) {
    group[k] = program.values[k].memory;
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
  std::vector<bool> changes(program.values.size());
  std::map<ValueId, Life> spans;
  for (int k = 0; k < lives.nodes(); ++k) {
    const Node& node = program.nodes[k];
    const auto touch = [&](ValueId each) {
      const ValueId memory = program.values[each].memory;
      const Origin origin = program.values[memory].origin;
      if (origin != Origin::kBuffer && origin != Origin::kParameter) return;
      spans.try_emplace(group[memory], Life{k, k}).first->second.end = k;
    };
    for (const ValueId each : node.reads) touch(each);
    for (const ValueId each : node.writes) {
      touch(each);
      changes[group[program.values[each].memory]] = true;
    }
  }
  for (const auto& [memory, span] : spans) {
    if (changes[memory]) counts.add(span);
  }
  return counts.sums();
}

// What happens to a value or a symbol at a place.
struct Event {
  enum class Kind { kCrosses, kEnds, kNeeded, kNotNeeded } kind;
  int number;  // a value, or a symbol
};

// Walks over all places, from front to back, and knows what crosses there.
class Walk {
 public:
  Walk(const Program& program, const Lives& lives)
      : program_(program),
        obstacles_(obstacles(program, lives)),
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

  // Goes to the place before node `place`, one after the present one.
  void enter(int place) {
    place_ = place;
    for (const Event& event : events_[place]) apply(event);
  }

  // Returns whether a cut here is correct.
  bool may_cut() const {
    return place_ > 0 && place_ < static_cast<int>(program_.nodes.size()) &&
           !program_.nodes[place_].pure && obstacles_[place_] == 0 &&
           !crossing_.empty() && missing_ == 0;
  }

  // The tensors that cross here, without skip tensors.
  const std::set<ValueId>& crossing() const { return crossing_; }

 private:
  void add(const Life& life, Event::Kind begin, Event::Kind end, int number) {
    if (life.end <= life.begin) return;
    events_[life.begin + 1].push_back({begin, number});
    events_[life.end + 1].push_back({end, number});
  }

  void apply(const Event& event) {
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

  void carry(ValueId value, int by) {
    for (const Extent& each : program_.values[value].sizes) {
      if (each.symbol != Extent::kNone) change(carriers_, each.symbol, by);
    }
  }

  void change(std::vector<int>& counts, int symbol, int by) {
    const auto is_missing = [&] {
      return needed_[symbol] > 0 && carriers_[symbol] == 0;
    };
    missing_ -= is_missing();
    counts[symbol] += by;
    missing_ += is_missing();
  }

  const Program& program_;
  const std::vector<int> obstacles_;
  std::vector<std::vector<Event>> events_;
  int place_ = 0;
  std::set<ValueId> crossing_;
  std::vector<int> carriers_, needed_;  // by symbol
  int missing_ = 0;  // symbols that are needed, and that nothing carries
};

// A cut before node `place`, and the tensors that cross.
struct Cut {
  int place;
  std::vector<ValueId> crossing;
};

std::vector<Cut> find_cuts(const Program& program, const Lives& lives,
                           int64_t max_crossing) {
  std::vector<Cut> cuts;
  Walk walk(program, lives);
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

// Fills in the plans of the layers between the cuts.
class Planner {
 public:
  Planner(const Program& program, const Lives& lives, std::vector<Cut> cuts)
      : program_(program),
        lives_(lives),
        cuts_(std::move(cuts)),
        plans_(cuts_.size() + 1),
        seen_(program.values.size(), -1) {}

  std::vector<LayerPlan> plan() {
    plans_.front().inputs = program_.inputs;
    for (std::size_t k = 0; k < cuts_.size(); ++k) {
      plans_[k].outputs = plans_[k + 1].inputs = cuts_[k].crossing;
    }
    plans_.back().outputs = program_.outputs;
    for (layer_ = 0; layer_ < static_cast<int>(plans_.size()); ++layer_) {
      collect();
    }
    add_hops();
    for (layer_ = 0; layer_ < static_cast<int>(plans_.size()); ++layer_) {
      find_sizes();
    }
    return std::move(plans_);
  }

 private:
  int begin() const { return layer_ == 0 ? 0 : cuts_[layer_ - 1].place; }
  int end() const {
    return layer_ < static_cast<int>(cuts_.size()) ? cuts_[layer_].place
                                                   : lives_.nodes();
  }
  bool computed_here(ValueId value) const {
    const int producer = program_.values[value].producer;
    return producer >= begin() && producer < end();
  }

  // Finds the nodes of the layer, and the values that they read.
  void collect() {
    LayerPlan& plan = plans_[layer_];
    pure_.clear();
    wanted_sizes_.emplace_back();
    for (int k = begin(); k < end(); ++k) {
      if (program_.nodes[k].pure) continue;
      plan.nodes.push_back(k);
      for (const ValueId each : program_.nodes[k].reads) want(each);
    }
    for (const ValueId each : plan.outputs) want(each);
    // A node that depends on a tensor of this layer cannot run before it.
    std::set<ValueId> late;
    for (const int k : pure_) {
      const Node& node = program_.nodes[k];
      const bool is_late =
          lives_.is_known_size(node) ||
          std::any_of(node.reads.begin(), node.reads.end(),
                      [&](ValueId each) { return late.count(each) > 0; });
      if (is_late) {
        for (const Result& result : node.results) {
          late.insert(result.values.begin(), result.values.end());
        }
      }
      (is_late ? plan.nodes : plan.constants).push_back(k);
    }
    std::sort(plan.nodes.begin(), plan.nodes.end());
  }

  void want(ValueId first) {
    std::vector<ValueId> pending = {first};
    while (!pending.empty()) {
      const ValueId id = pending.back();
      pending.pop_back();
      if (seen_[id] == layer_) continue;
      seen_[id] = layer_;
      const Value& value = program_.values[id];
      if (value.origin == Origin::kParameter) {
        users_[id].push_back(layer_);
      } else if (value.origin == Origin::kBuffer) {
        plans_[layer_].weights.push_back(id);
      } else if (lives_.is_passed(id)) {
        if (lives_.is_long(id)) users_[id].push_back(layer_);
      } else {
        const Node& node = program_.nodes[value.producer];
        if (lives_.is_known_size(node) && !computed_here(node.reads[0])) {
          wanted_sizes_[layer_].push_back(id);
          continue;
        }
        pure_.insert(value.producer);
        pending.insert(pending.end(), node.reads.begin(), node.reads.end());
      }
    }
  }

  // A parameter belongs to the first layer that uses it. A long-lived tensor
  // starts in the layer that computes it.
  void add_hops() {
    for (auto& [id, layers] : users_) {
      const Value& value = program_.values[id];
      int from = layers.front();
      std::size_t next = 1;
      if (value.origin == Origin::kParameter) {
        plans_[from].weights.push_back(id);
      } else {
        from = layer_of(value.producer);
        next = layers.front() == from ? 1 : 0;
      }
      for (int hop = 0; next < layers.size(); ++next, ++hop) {
        plans_[from].stashes.push_back({id, hop});
        plans_[layers[next]].pops.push_back({id, hop});
        from = layers[next];
      }
    }
  }

  int layer_of(int node) const {
    return static_cast<int>(std::upper_bound(cuts_.begin(), cuts_.end(), node,
                                             [](int place, const Cut& cut) {
                                               return place < cut.place;
                                             }) -
                            cuts_.begin());
  }

  // Finds a tensor for each size that the layer needs.
  void find_sizes() {
    LayerPlan& plan = plans_[layer_];
    for (const ValueId id : wanted_sizes_[layer_]) {
      const Extent& extent = *program_.values[id].extent;
      if (extent.symbol == Extent::kNone) {
        plan.sizes.push_back({id, kNoValue, 0, 1, extent.factor});
        continue;
      }
      const auto take = [&](ValueId tensor) {
        const auto& sizes = program_.values[tensor].sizes;
        for (std::size_t d = 0; d < sizes.size(); ++d) {
          if (sizes[d].symbol != extent.symbol) continue;
          plan.sizes.push_back({id, tensor, static_cast<int>(d),
                                sizes[d].factor, extent.factor});
          return true;
        }
        return false;
      };
      bool found = false;
      for (const ValueId each : plan.inputs) found = found || take(each);
      for (const Hop& each : plan.pops) found = found || take(each.value);
      TORCH_CHECK_VALUE(found, "no input has the size '",
                        program_.values[id].name,
                        "' of the program; the file is damaged");
    }
  }

  const Program& program_;
  const Lives& lives_;
  const std::vector<Cut> cuts_;
  std::vector<LayerPlan> plans_;
  std::vector<int> seen_;  // the last layer that wanted a value
  int layer_ = 0;
  std::set<int> pure_;
  std::vector<std::vector<ValueId>> wanted_sizes_;
  std::map<ValueId, std::vector<int>> users_;
};

}  // namespace

std::vector<LayerPlan> plan_layers(const Program& program,
                                   int64_t max_crossing) {
  const Lives lives(program);
  return Planner(program, lives, find_cuts(program, lives, max_crossing))
      .plan();
}

std::vector<int> crossings(const Program& program) {
  const Lives lives(program);
  Walk walk(program, lives);
  std::vector<int> counts(program.nodes.size(), kNoCut);
  for (int k = 0; k < lives.nodes(); ++k) {
    walk.enter(k);
    if (walk.may_cut()) counts[k] = static_cast<int>(walk.crossing().size());
  }
  return counts;
}

}  // namespace gpipe::exported
