#include "exported/cut_obstacles.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <unordered_map>

namespace gpipe::exported {
namespace {

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

  // Returns the counts of the places 0, 1, ..., places - 1.
  std::vector<int> sums() const {
    std::vector<int> sums(changes_.begin(), changes_.end() - 2);
    for (std::size_t k = 1; k < sums.size(); ++k) sums[k] += sums[k - 1];
    return sums;
  }

 private:
  std::vector<int> changes_;
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

// Counts the values that are alive at a place and cannot cross there.
void add_values(const Program& program, const Lives& lives, Counts& counts) {
  const std::vector<bool> has_gradient = differentiable(program);
  const std::vector<int> last_write = last_writes(program);
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

// Counts the weights that change, from their first use to their last one.
void add_changing_weights(const Program& program, Counts& counts) {
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
  for (const auto& [memory, span] : spans) {
    if (changes[memory]) counts.add(span);
  }
}

}  // namespace

std::vector<int> count_obstacles(const Program& program, const Lives& lives) {
  Counts counts(program.nodes.size());
  add_values(program, lives, counts);
  add_changing_weights(program, counts);
  return counts.sums();
}

}  // namespace gpipe::exported
