#include "models/exported/analysis.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/exported/eval_mode.h"

namespace gpipe::exported {
namespace {

// The last node that uses each memory, and the last one that computes or
// changes it, by the value that owns the memory; -1 for none.
struct LastNodes {
  std::vector<int> use, change;
};

LastNodes last_nodes(const Program& program, std::size_t nodes) {
  LastNodes last;
  last.use.assign(program.values.size(), -1);
  last.change = last.use;
  for (std::size_t k = 0; k < nodes; ++k) {
    const Node& node = program.nodes[k];
    const auto note = [&](std::vector<int>& list, ValueId value) {
      list[program.values[value].memory] = static_cast<int>(k);
    };
    for (const ValueId each : node.reads) note(last.use, each);
    for (const ValueId each : node.writes) note(last.change, each);
    for_each_result(node, [&](ValueId each) {
      note(last.use, each);
      note(last.change, each);
    });
  }
  return last;
}

bool is_assignment(const Program& program, const Node& node) {
  if (node.target != "torch.ops.aten.copy_.default") return false;
  if (node.reads.size() < 2) return false;
  const Value& target = program.values[node.reads[0]];
  return target.origin == Origin::kBuffer ||
         target.origin == Origin::kParameter;
}

// Moves the assignments at the end of the graph.
void move_assignments(Program& program) {
  std::vector<Node>& nodes = program.nodes;
  std::size_t first = nodes.size();
  while (first > 0 && is_assignment(program, nodes[first - 1])) --first;
  if (first == nodes.size()) return;
  const LastNodes last = last_nodes(program, first);
  std::vector<Node> assignments(std::make_move_iterator(nodes.begin() + first),
                                std::make_move_iterator(nodes.end()));
  nodes.resize(first);
  // The assignments that follow node k - 1.
  std::vector<std::vector<Node>> after(first + 1);
  Region no_grad;
  no_grad.no_grad = true;
  const int region = static_cast<int>(program.regions.size());
  program.regions.push_back(no_grad);
  for (Node& each : assignments) {
    const ValueId target = program.values[each.reads[0]].memory;
    const ValueId source = program.values[each.reads[1]].memory;
    // The buffer has been changed in place, and has its value already.
    if (target == source) continue;
    each.region = region;
    after[std::max(last.use[target], last.change[source]) + 1].push_back(
        std::move(each));
  }
  std::vector<Node> ordered;
  ordered.reserve(nodes.size() + assignments.size());
  for (std::size_t k = 0; k <= first; ++k) {
    for (Node& each : after[k]) ordered.push_back(std::move(each));
    if (k < first) ordered.push_back(std::move(nodes[k]));
  }
  nodes = std::move(ordered);
}

// Moves an assignment of a buffer to the place before the next node that uses
// the buffer, together with the nodes that compute only what is assigned. So a
// program that sets the buffers of all its layers at its start, such as the
// lengths of a static cache, can be cut between these layers.
void delay_assignments(Program& program) {
  // A later node that must stay behind: its new place, and whether it moves.
  struct Place {
    int number;
    bool moves;
    bool operator<(const Place& other) const { return number < other.number; }
  };
  const std::vector<Node>& nodes = program.nodes;
  const int count = static_cast<int>(nodes.size());
  const Place none{count, false};
  // By memory: the next place that uses it, and the next one that changes it.
  std::vector<Place> use(program.values.size(), none), change = use;
  std::vector<int> place(nodes.size());
  bool any = false;
  for (int k = count - 1; k >= 0; --k) {
    const Node& node = nodes[k];
    const auto memory = [&](ValueId each) {
      return program.values[each].memory;
    };
    Place next = none;
    for (const ValueId each : node.reads) {
      next = std::min(next, change[memory(each)]);
    }
    for (const ValueId each : node.writes) {
      next = std::min(next, use[memory(each)]);
    }
    for_each_result(
        node, [&](ValueId each) { next = std::min(next, use[memory(each)]); });
    const bool computes = node.writes.empty() && !node.results.empty() &&
                          !node.random && node.bodies.empty();
    const bool moves =
        next.number > k + 1 && next.number < count &&
        (is_assignment(program, node) || (computes && next.moves));
    const Place own = {moves ? next.number : k, moves};
    place[k] = own.number;
    any = any || moves;
    const auto note = [&](std::vector<Place>& list, ValueId each) {
      list[memory(each)] = std::min(own, list[memory(each)]);
    };
    for (const ValueId each : node.reads) note(use, each);
    for (const ValueId each : node.writes) {
      note(use, each);
      note(change, each);
    }
    for_each_result(node, [&](ValueId each) {
      note(use, each);
      note(change, each);
    });
  }
  if (!any) return;
  std::vector<int> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  // A moved node has a smaller number than the node at its new place.
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return place[a] < place[b]; });
  std::vector<Node> ordered;
  ordered.reserve(nodes.size());
  for (const int k : order) ordered.push_back(std::move(program.nodes[k]));
  program.nodes = std::move(ordered);
}

// Returns whether a node only checks something, and throws if it does not hold.
bool is_check(const Node& node) {
  return node.results.empty() && node.writes.empty();
}

// Sets `needed` by walking back from the outputs and the checks.
void find_needed(Program& program) {
  std::vector<bool> value(program.values.size()), memory(value.size());
  const auto need = [&](ValueId id) {
    value[id] = true;
    memory[program.values[id].memory] = true;
  };
  for (const ValueId each : program.outputs) need(each);
  for (std::size_t k = program.nodes.size(); k-- > 0;) {
    Node& node = program.nodes[k];
    node.needed = is_check(node);
    for_each_result(
        node, [&](ValueId each) { node.needed = node.needed || value[each]; });
    for (const ValueId each : node.writes) {
      // Running statistics do not change what the node returns.
      if (each == node.running_mean || each == node.running_var) continue;
      node.needed = node.needed || memory[program.values[each].memory];
    }
    if (!node.needed) continue;
    if (node.passed != kNoValue) {
      need(node.passed);
      continue;
    }
    for (const ValueId each : node.reads) need(each);
  }
}

// Removes nodes that no output and no effect depends on.
void remove_dead(Program& program, bool keep_random) {
  std::vector<bool> value(program.values.size()), memory(value.size());
  std::vector<bool> keep(program.nodes.size());
  for (std::size_t k = program.nodes.size(); k-- > 0;) {
    const Node& node = program.nodes[k];
    bool used =
        node.needed || node.results.empty() || (keep_random && node.random);
    for (const ValueId each : node.writes) {
      const ValueId owner = program.values[each].memory;
      used = used || program.values[owner].origin != Origin::kNode ||
             memory[owner];
    }
    for_each_result(node, [&](ValueId each) { used = used || value[each]; });
    if (!used) continue;
    keep[k] = true;
    for (const ValueId each : node.reads) {
      value[each] = true;
      memory[program.values[each].memory] = true;
    }
  }
  std::size_t kept = 0;
  for (std::size_t k = 0; k < keep.size(); ++k) {
    if (!keep[k]) continue;
    if (kept != k) program.nodes[kept] = std::move(program.nodes[k]);
    ++kept;
  }
  program.nodes.erase(program.nodes.begin() + static_cast<int64_t>(kept),
                      program.nodes.end());
}

void number_producers(Program& program) {
  for (Value& value : program.values) value.producer = -1;
  for (std::size_t k = 0; k < program.nodes.size(); ++k) {
    for_each_result(program.nodes[k], [&](ValueId each) {
      program.values[each].producer = static_cast<int>(k);
    });
  }
}

void find_pure(Program& program) {
  // Whether a memory is changed in place.
  std::vector<bool> written(program.values.size());
  for_each_node(program.nodes, [&](const Node& node) {
    for (const ValueId each : node.writes) {
      written[program.values[each].memory] = true;
    }
  });
  for (Value& value : program.values) value.written = written[value.memory];
  std::vector<bool> pure(program.values.size());
  for (std::size_t k = 0; k < pure.size(); ++k) {
    pure[k] = program.values[k].origin == Origin::kBuffer &&
              !program.weights[program.values[k].weight].requires_grad &&
              !written[program.values[k].memory];
  }
  for (Node& node : program.nodes) {
    node.pure = !node.random && !node.results.empty() && node.writes.empty() &&
                node.bodies.empty();
    for (const ValueId each : node.reads) {
      node.pure = node.pure && pure[each];
    }
    // The tensor of a size does not matter if another one has the same size.
    if (size_extent(program, node)) node.pure = true;
    for_each_result(node, [&](ValueId each) {
      pure[each] = node.pure && !written[program.values[each].memory];
      node.pure = node.pure && pure[each];
    });
  }
}

void check_inputs(Program& program) {
  for (const Node& node : program.nodes) {
    for (const ValueId each : node.writes) {
      const Value& owner = program.values[program.values[each].memory];
      if (owner.origin != Origin::kInput) continue;
      program.problems.push_back(place_of(node) + " changes the input '" +
                                 owner.name +
                                 "' in place; clone() the input in forward()");
    }
  }
}

// Returns the symbols of the rows. Inputs that meet in no operator may have a
// symbol each: a pipeline splits all of them, and checks that their rows are
// equally many. Empty if all inputs have fixed sizes.
std::set<int> row_symbols(const Program& program) {
  std::set<int> rows;
  for (const ValueId each : program.inputs) {
    const std::vector<Extent>& sizes = program.values[each].sizes;
    if (!sizes.empty()) rows.insert(sizes[0].symbol);
  }
  rows.erase(Extent::kNone);
  return rows;
}

// Returns why the outputs of micro-batches cannot be concatenated along
// dimension 0 to `output`; "" if they can.
std::string output_problem(const Value& output, const std::set<int>& rows) {
  const std::vector<Extent>& sizes = output.sizes;
  if (sizes.empty()) {
    return "has no dimension 0, as a loss that is computed in the model";
  }
  if (rows.empty()) return "";
  if (!rows.contains(sizes[0].symbol)) {
    return "does not have the rows of the inputs in dimension 0";
  }
  for (std::size_t k = 1; k < sizes.size(); ++k) {
    const std::string place = "in dimension " + std::to_string(k);
    if (sizes[k].symbol == sizes[0].symbol) {
      return "has the rows of the inputs " + place + ", too";
    }
    if (rows.contains(sizes[k].symbol)) {
      return "has the rows of one input in dimension 0 and those of another "
             "one " +
             place +
             " (export an input that all rows share with a fixed dimension 0)";
    }
  }
  return "";
}

void check_outputs(Program& program, bool concatenates) {
  if (program.outputs.empty()) {
    program.problems.emplace_back("the program returns no tensor");
  }
  if (!concatenates) return;
  const std::set<int> rows = row_symbols(program);
  for (const ValueId each : program.outputs) {
    const Value& output = program.values[each];
    const std::string problem = output_problem(output, rows);
    if (problem.empty()) continue;
    program.problems.push_back(
        "output '" + output.name + "' " + problem +
        ", so the outputs of micro-batches cannot be concatenated; choose "
        "other outputs with ExportedOptions::outputs");
  }
}

}  // namespace

void analyze(Program& program, bool keep_random, bool concatenates) {
  move_assignments(program);
  delay_assignments(program);
  find_stochastic_depth(program);
  find_needed(program);
  remove_dead(program, keep_random);
  number_producers(program);
  find_pure(program);
  check_inputs(program);
  check_outputs(program, concatenates);
}

}  // namespace gpipe::exported
