#include "models/exported/plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "models/exported/cuts.h"

namespace gpipe::exported {

// ---- Plans

namespace {

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
    add_size_hops();
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
      const bool is_late = lives_.is_known_size(node) ||
                           std::ranges::any_of(node.reads, [&](ValueId each) {
                             return late.count(each) > 0;
                           });
      if (is_late) {
        for_each_result(node, [&](ValueId each) { late.insert(each); });
      }
      (is_late ? plan.nodes : plan.constants).push_back(k);
    }
    std::ranges::sort(plan.nodes);
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
      pass_on(id, from, {layers.begin() + next, layers.end()});
    }
  }

  // Passes a value from layer `from` to each of the layers `to`.
  void pass_on(ValueId id, int from, const std::vector<int>& to) {
    for (std::size_t hop = 0; hop < to.size(); ++hop) {
      plans_[from].stashes.push_back({id, static_cast<int>(hop)});
      plans_[to[hop]].pops.push_back({id, static_cast<int>(hop)});
      from = to[hop];
    }
  }

  int layer_of(int node) const {
    return static_cast<int>(std::upper_bound(cuts_.begin(), cuts_.end(), node,
                                             [](int place, const Cut& cut) {
                                               return place < cut.place;
                                             }) -
                            cuts_.begin());
  }

  // Returns whether a value is there in eval(), which leaves out nodes that
  // only change buffers.
  bool is_needed(ValueId value) const {
    const int producer = program_.values[value].producer;
    return producer < 0 || program_.nodes[producer].needed;
  }

  // Finds a tensor for each size that the layer needs. If there is none, the
  // first size with the same symbol becomes a skip tensor.
  void find_sizes() {
    LayerPlan& plan = plans_[layer_];
    for (const ValueId id : wanted_sizes_[layer_]) {
      const Extent& extent = *program_.values[id].extent;
      if (extent.symbol == Extent::kNone) {
        plan.sizes.push_back({id, kNoValue, 0, 1, extent.factor});
        continue;
      }
      const bool needed = is_needed(id);
      const auto take = [&](ValueId tensor) {
        if (needed && !is_needed(tensor)) return false;
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
      if (found) continue;
      const ValueId passed =
          passed_sizes_.try_emplace({extent.symbol, needed}, id).first->second;
      std::vector<int>& layers = size_users_[passed];
      if (layers.empty() || layers.back() != layer_) layers.push_back(layer_);
      if (passed == id) continue;
      plan.sizes.push_back({id, passed, 0,
                            program_.values[passed].extent->factor,
                            extent.factor});
    }
  }

  // A size starts in the layer that has the tensor from which it is read. There
  // its node reads it.
  void add_size_hops() {
    for (const auto& [size, layers] : size_users_) {
      const ValueId id = size;
      const int node = program_.values[id].producer;
      const ValueId tensor = program_.nodes[node].reads[0];
      const int from = layer_of(program_.values[tensor].producer);
      TORCH_CHECK_VALUE(from < layers.front(), "no input has the size '",
                        program_.values[id].name,
                        "' of the program; the file is damaged");
      LayerPlan& plan = plans_[from];
      const bool has_it = std::ranges::any_of(
          plan.sizes, [&](const SizeSource& each) { return each.value == id; });
      const auto place =
          std::lower_bound(plan.nodes.begin(), plan.nodes.end(), node);
      if (!has_it && (place == plan.nodes.end() || *place != node)) {
        plan.nodes.insert(place, node);
      }
      pass_on(id, from, layers);
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
  // By symbol, and whether eval() needs the size.
  std::map<std::pair<int, bool>, ValueId> passed_sizes_;
  std::map<ValueId, std::vector<int>> size_users_;
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
  CrossingWalk walk(program, lives);
  std::vector<int> counts(program.nodes.size(), kNoCut);
  for (int k = 0; k < lives.nodes(); ++k) {
    walk.enter(k);
    if (walk.may_cut()) counts[k] = static_cast<int>(walk.crossing().size());
  }
  return counts;
}

// ---- Names

std::string layer_path(const Program& program, const LayerPlan& plan) {
  std::string path;
  for (const int k : plan.nodes) {
    const Node& node = program.nodes[k];
    if (node.pure || node.module.empty()) continue;
    const bool has_weight = std::ranges::any_of(node.reads, [&](ValueId each) {
      return program.values[each].weight >= 0;
    });
    if (has_weight) return node.module;
    if (path.empty()) path = node.module;
  }
  if (!path.empty()) return path;
  for (const int k : plan.nodes) {
    if (!program.nodes[k].pure) return operator_name(program.nodes[k]);
  }
  return "layer";
}

std::vector<std::string> layer_names(const std::vector<std::string>& paths) {
  std::map<std::string, int> next;  // the number of the next layer of a name
  std::set<std::string> taken;
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    std::string name = path;
    std::ranges::replace(name, '.', '_');
    std::string unique = name;
    int& number = next.try_emplace(name, 2).first->second;
    while (unique.empty() || !taken.insert(unique).second) {
      unique = name + "_" + std::to_string(number++);
    }
    names.push_back(std::move(unique));
  }
  return names;
}

}  // namespace gpipe::exported
