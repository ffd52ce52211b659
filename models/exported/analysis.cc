#include "models/exported/analysis.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <absl/strings/ascii.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

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

// Returns whether the result of `node` is its argument `read`, if it has the
// memory, dtype and sizes of that: not its transpose or conjugate.
bool passes_on(const Node& node, ValueId read) {
  constexpr std::array kSame{
      "aten.alias",  "aten.contiguous", "aten.detach",     "aten.expand",
      "aten.narrow", "aten.expand_as",  "aten.lift_fresh", "aten.reshape",
      "aten.slice",  "aten.reshape_as", "aten.to",         "aten.type_as",
      "aten.view",   "aten.view_as"};
  return std::ranges::find(node.writes, read) != node.writes.end() ||
         std::ranges::find(kSame, operator_name(node)) != kSame.end();
}

// Returns for each value the first one that is the same tensor, after changes
// in place and conversions that convert nothing; the value itself if it is new.
// A part of a tensor, and its values in another dtype, are new.
std::vector<ValueId> same_tensors(const Program& program) {
  std::vector<ValueId> same(program.values.size());
  std::iota(same.begin(), same.end(), 0);
  for (const Node& node : program.nodes) {
    for_each_result(node, [&](ValueId result) {
      const Value& value = program.values[result];
      for (const ValueId each : node.reads) {
        const Value& read = program.values[each];
        if (read.memory == value.memory && read.dtype == value.dtype &&
            read.sizes == value.sizes && passes_on(node, each)) {
          same[result] = same[each];
          return;
        }
      }
    });
  }
  return same;
}

// Moves the assignments at the end of the graph. Those that read or assign the
// same buffers keep their order.
void move_assignments(Program& program) {
  std::vector<Node>& nodes = program.nodes;
  std::size_t first = nodes.size();
  while (first > 0 && is_assignment(program, nodes[first - 1])) --first;
  if (first == nodes.size()) return;
  const std::vector<ValueId> same = same_tensors(program);
  LastNodes last = last_nodes(program, first);
  std::vector<Node> assignments(std::make_move_iterator(nodes.begin() + first),
                                std::make_move_iterator(nodes.end()));
  nodes.resize(first);
  std::set<ValueId> read(program.outputs.begin(), program.outputs.end());
  for (const Node& each : assignments) read.insert(each.reads[1]);
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
    bool is_read = false;
    for_each_result(
        each, [&](ValueId id) { is_read = is_read || read.contains(id); });
    if (same[each.reads[0]] == same[each.reads[1]] && !is_read) continue;
    each.region = region;
    const int node = std::max(last.use[target], last.change[source]);
    for (const ValueId memory : {target, source}) {
      last.use[memory] = std::max(node, last.use[memory]);
    }
    last.change[target] = std::max(node, last.change[target]);
    after[node + 1].push_back(std::move(each));
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
  std::ranges::stable_sort(order,
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
  // Nodes that may return their input in eval(), as dropout does.
  std::vector<const Node*> switched;
  for_each_node(program.nodes, [&](const Node& node) {
    for (const ValueId each : node.writes) {
      written[program.values[each].memory] = true;
    }
    if (!node.training_flags.empty() || node.passed != kNoValue) {
      switched.push_back(&node);
    }
  });
  for (Value& value : program.values) value.written = written[value.memory];
  // A change of their result changes their input, too, which then is no
  // constant.
  std::ranges::reverse(switched);
  for (const Node* node : switched) {
    bool changes = false;
    for_each_result(*node, [&](ValueId each) {
      changes = changes || written[program.values[each].memory];
    });
    if (!changes) continue;
    for (const ValueId each : node->reads) {
      written[program.values[each].memory] = true;
    }
  }
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

// Refuses overlapping weights that change or are trained. Each has a memory of
// its own here, so that the other one would not change as well.
void check_weights(Program& program) {
  std::set<int> changed;  // by the first one of tied weights
  for (const Value& each : program.values) {
    if (each.weight >= 0 && each.written) {
      changed.insert(program.weights[each.weight].tied_to);
    }
  }
  const auto changes = [&](int number) {
    return program.weights[number].requires_grad || changed.contains(number);
  };
  for (std::size_t k = 0; k < program.weights.size(); ++k) {
    const Weight& weight = program.weights[k];
    for (const int each : weight.overlapping) {
      if (!changes(static_cast<int>(k)) && !changes(each)) continue;
      program.problems.push_back(
          "the weights '" + program.weights[each].name + "' and '" +
          weight.name +
          "' share memory in Python, and a change of one must be seen in the "
          "other; register only one of them, and take its part in forward()");
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

// Returns whether the expression of a size has the symbol `name`.
bool is_computed_from(const std::string& expression, const std::string& name) {
  const auto is_of_name = [&](std::size_t at) {
    return at < expression.size() &&
           (absl::ascii_isalnum(expression[at]) || expression[at] == '_');
  };
  for (std::size_t at = expression.find(name); at != std::string::npos;
       at = expression.find(name, at + 1)) {
    if (!is_of_name(at - 1) && !is_of_name(at + name.size())) return true;
  }
  return false;
}

// Returns why the outputs of micro-batches cannot be concatenated along
// dimension 0 to `output`; "" if they can.
std::string output_problem(const Value& output, const std::set<int>& rows,
                           const Symbols& symbols) {
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
    if (sizes[k].symbol == Extent::kNone) continue;
    const std::string& expression = symbols.name(sizes[k].symbol);
    for (const int each : rows) {
      if (is_computed_from(expression, symbols.name(each))) {
        return "has a size that is computed from the rows of the inputs " +
               place;
      }
    }
  }
  return "";
}

// Returns the number in a constant argument; nullopt if there is none.
std::optional<double> number_in(const Node& node, std::size_t place) {
  if (place >= node.arguments.size()) return std::nullopt;
  const c10::IValue& constant = node.arguments[place].constant;
  if (constant.isDouble() || constant.isInt()) {
    return constant.toScalar().toDouble();
  }
  if (constant.isTensor() && constant.toTensor().defined() &&
      constant.toTensor().dim() == 0) {
    return constant.toTensor().item().toDouble();
  }
  return std::nullopt;
}

// Returns the values that have the rows of several tensors one after the other,
// as torch.cat() along dimension 0 gives them, or a part of the rows of inputs
// that begin so, or of a view [groups, rows of each group, ...]. The
// concatenated outputs of micro-batches have these rows in another order.
std::set<ValueId> joined_rows(const Program& program,
                              const std::set<int>& symbols) {
  std::set<ValueId> joined;
  std::set<ValueId> grouped;  // rows as [groups, rows of each group, ...]
  const auto rows = [&](ValueId each) {
    const std::vector<Extent>& sizes = program.values[each].sizes;
    return sizes.empty() ? Extent() : sizes[0];
  };
  // Returns whether a dimension of several elements, such as groups, precedes
  // the rows.
  const auto has_groups = [&](ValueId each) {
    bool has_more = false;
    for (const Extent& size : program.values[each].sizes) {
      if (size.symbol != Extent::kNone) {
        return has_more && symbols.contains(size.symbol);
      }
      has_more = has_more || size.factor > 1;
    }
    return false;
  };
  const bool inputs_in_groups =
      std::ranges::any_of(program.inputs, [&](ValueId each) {
        return symbols.contains(rows(each).symbol) && rows(each).factor > 1;
      });
  for (const Node& node : program.nodes) {
    const auto is_one_of = [&](const auto& names) {
      return std::ranges::any_of(names, [&](const std::string& name) {
        return operator_name(node) == "aten." + name;
      });
    };
    // Others make one dimension of the rows and of the next ones.
    const bool joins =
        is_one_of(std::array{"cat", "concat", "concatenate", "vstack",
                             "row_stack", "hstack", "cartesian_prod", "pad",
                             "constant_pad_nd", "repeat", "tile"}) ||
        !node.bodies.empty();
    // These have all elements, in the same order.
    const bool is_view =
        is_one_of(std::array{"view", "reshape", "flatten", "unflatten",
                             "_unsafe_view", "view_as", "reshape_as"});
    // Parts of inputs that have, say, 2 * s rows. Argument 4 is the step of a
    // slice: x[::2] takes the same part of each micro-batch.
    const bool cuts =
        inputs_in_groups &&
        is_one_of(std::array{"chunk", "narrow", "slice", "split",
                             "split_with_sizes", "tensor_split", "unsafe_chunk",
                             "unsafe_split", "unsafe_split_with_sizes"}) &&
        number_in(node, 4).value_or(1) == 1;
    for_each_result(node, [&](ValueId result) {
      const Extent own = rows(result);
      bool of_groups = std::ranges::any_of(
          node.reads, [&](ValueId each) { return grouped.contains(each); });
      if (own.symbol == Extent::kNone) {
        // x.view(2, n, ...) of inputs of 2 * n rows, x.view(4, n, ...) of n
        // rows, or what is computed from these.
        const std::vector<Extent>& sizes = program.values[result].sizes;
        of_groups =
            of_groups ||
            (is_view && std::ranges::any_of(node.reads, [&](ValueId each) {
               return symbols.contains(rows(each).symbol) &&
                      !joined.contains(each) &&
                      (inputs_in_groups ||
                       std::ranges::find(sizes, rows(each)) != sizes.end());
             }));
        if (of_groups && has_groups(result)) grouped.insert(result);
        return;
      }
      const auto is_as_long = [&](ValueId each) { return rows(each) == own; };
      const bool keeps = std::ranges::any_of(node.reads, [&](ValueId each) {
        return joined.contains(each) &&
               (is_view || (rows(each).symbol == own.symbol &&
                            own.factor % rows(each).factor == 0));
      });
      const bool has_other_rows =
          std::ranges::none_of(node.reads, is_as_long) &&
          std::ranges::any_of(node.reads, [&](ValueId each) {
            return rows(each).symbol == own.symbol;
          });
      // torch.stack() along dimension 0, and then one dimension of both, and
      // maybe of further ones.
      const bool flattens = std::ranges::any_of(node.reads, [&](ValueId each) {
        const std::vector<Extent>& sizes = program.values[each].sizes;
        if (is_view && has_groups(each)) return true;
        return sizes.size() > 1 && sizes[0].symbol == Extent::kNone &&
               sizes[0].factor > 1 && sizes[1].symbol == own.symbol &&
               own.factor % sizes[0].factor == 0 &&
               own.factor / sizes[0].factor % sizes[1].factor == 0;
      });
      const bool is_part =
          cuts && std::ranges::any_of(node.reads, [&](ValueId each) {
            return rows(each).symbol == own.symbol &&
                   rows(each).factor > own.factor && !joined.contains(each);
          });
      if (keeps || flattens || is_part || of_groups ||
          (joins && has_other_rows)) {
        joined.insert(result);
      }
    });
  }
  return joined;
}

void check_outputs(Program& program, bool concatenates) {
  if (program.outputs.empty()) {
    program.problems.emplace_back("the program returns no tensor");
  }
  if (!concatenates) return;
  const std::set<int> rows = row_symbols(program);
  const std::set<ValueId> joined = joined_rows(program, rows);
  for (const ValueId each : program.outputs) {
    const Value& output = program.values[each];
    const std::string problem =
        joined.contains(each)
            ? "has the rows of several tensors one after the other, as of "
              "torch.cat() along dimension 0"
            : output_problem(output, rows, program.symbols);
    if (problem.empty()) continue;
    program.problems.push_back(
        "output '" + output.name + "' " + problem +
        ", so the outputs of micro-batches cannot be concatenated; choose "
        "other outputs with ExportedOptions::outputs");
  }
}

// ---- Stochastic depth

bool calls(const Node& node, const char* name) {
  return node.op && node.op->operator_name().name == name;
}

ValueId result_of(const Node& node) {
  return node.results.size() == 1 && node.results[0].values.size() == 1
             ? node.results[0].values[0]
             : kNoValue;
}

// A finder of the noise of stochastic depth, whose training flag the export
// loses. find() sets Node::passed of the nodes that multiply by this noise.
// Recognized is what torchvision, timm and transformers do, where nothing else
// uses the noise:
//
//   x * empty(rows, 1, ...).bernoulli_(p).div_(p)
//   x.div(p) * floor(rand(rows, 1, ...) + p)
//
// The value that passes then has the memory of `x`, as in Python. A node is
// left as it is if a later change in place could be seen through both.
class StochasticDepth {
 public:
  explicit StochasticDepth(Program& program)
      : program_(program), users_(program.values.size()) {
    for (std::size_t k = 0; k < program.nodes.size(); ++k) {
      const Node& node = program.nodes[k];
      const auto note = [&](ValueId each) {
        std::vector<int>& users = users_[program.values[each].memory];
        const int number = static_cast<int>(k);
        if (users.empty() || users.back() != number) users.push_back(number);
      };
      for (const ValueId each : node.reads) note(each);
      for_each_result(node, note);
    }
  }

  void find() {
    for (std::size_t k = 0; k < program_.nodes.size(); ++k) {
      Node& node = program_.nodes[k];
      if (!calls(node, "aten::mul")) continue;
      for (const std::size_t place : {std::size_t{0}, std::size_t{1}}) {
        if (try_factor(static_cast<int>(k), tensor_in(node, place),
                       tensor_in(node, 1 - place))) {
          break;
        }
      }
    }
  }

 private:
  // Lets the product `number` of `tensor` and `noise` pass `tensor`, if `noise`
  // is that of stochastic depth.
  bool try_factor(int number, ValueId tensor, ValueId noise) {
    if (tensor == kNoValue || noise == kNoValue) return false;
    if (!is_noise_for(noise, tensor) || !may_pass(number, tensor)) return false;
    if (is_bernoulli(number, noise)) {
      program_.nodes[number].passed = tensor;
      return true;
    }
    const auto rate = floor_rate(number, noise);
    if (!rate) return false;
    // The tensor was divided for this product only.
    const std::vector<int> users = users_of(tensor);
    const auto& outputs = program_.outputs;
    if (users.size() != 2 || users[1] != number ||
        std::ranges::find(outputs, tensor) != outputs.end()) {
      return false;
    }
    Node& division = program_.nodes[users[0]];
    const ValueId divided = tensor_in(division, 0);
    if (!calls(division, "aten::div") || divided == kNoValue ||
        division.arguments.size() != 2 || number_in(division, 1) != rate ||
        !may_pass(users[0], divided)) {
      return false;
    }
    division.passed = divided;
    program_.nodes[number].passed = tensor;
    return true;
  }

  std::vector<int> users_of(ValueId value) const {
    return users_[program_.values[value].memory];
  }

  // Returns whether `noise` has one element for each row of `tensor`, or one.
  bool is_noise_for(ValueId noise, ValueId tensor) const {
    const Value& a = program_.values[noise];
    const Value& b = program_.values[tensor];
    if (!a.dtype || a.dtype != b.dtype || a.origin != Origin::kNode ||
        a.sizes.size() != b.sizes.size()) {
      return false;
    }
    for (std::size_t d = 0; d < a.sizes.size(); ++d) {
      const bool is_one = a.sizes[d] == Extent{Extent::kNone, 1};
      if (!is_one && (d > 0 || a.sizes[d] != b.sizes[d])) return false;
    }
    return true;
  }

  // Returns whether the result of node `number` may be `tensor` itself.
  bool may_pass(int number, ValueId tensor) const {
    const ValueId result = result_of(program_.nodes[number]);
    if (result == kNoValue) return false;
    const Value& a = program_.values[result];
    const Value& b = program_.values[tensor];
    if (a.dtype != b.dtype || a.sizes != b.sizes) return false;
    const bool is_read_later = users_of(tensor).back() > number;
    return !changes_after(number, tensor) &&
           (!changes_after(number, result) ||
            (!is_read_later &&
             program_.values[b.memory].origin == Origin::kNode));
  }

  bool changes_after(int number, ValueId value) const {
    const ValueId memory = program_.values[value].memory;
    const std::vector<int> users = users_of(value);
    return std::ranges::any_of(users, [&](int user) {
      const auto& writes = program_.nodes[user].writes;
      return user > number && std::ranges::any_of(writes, [&](ValueId each) {
               return program_.values[each].memory == memory;
             });
    });
  }

  // Returns whether `noise` is empty(...).bernoulli_(p).div_(p), for the
  // product `number` only.
  bool is_bernoulli(int number, ValueId noise) const {
    const std::vector<int> users = users_of(noise);
    if (users.size() != 4 || users[3] != number) return false;
    const Node& empty = program_.nodes[users[0]];
    const Node& draw = program_.nodes[users[1]];
    const Node& scale = program_.nodes[users[2]];
    const auto rate = number_in(draw, 1);
    return (calls(empty, "aten::empty") || calls(empty, "aten::new_empty")) &&
           calls(draw, "aten::bernoulli_") && calls(scale, "aten::div_") &&
           scale.arguments.size() == 2 && rate && *rate > 0 &&
           number_in(scale, 1) == rate;
  }

  // Returns p if `noise` is floor(rand(...) + p), or the same in place, for the
  // product `number` only.
  std::optional<double> floor_rate(int number, ValueId noise) const {
    std::vector<int> users = users_of(noise);
    if (users.size() < 2 || users.back() != number) return std::nullopt;
    users.pop_back();
    const Node& floor = program_.nodes[users.back()];
    if (calls(floor, "aten::floor")) {
      const ValueId sum = tensor_in(floor, 0);
      if (users.size() != 1 || sum == kNoValue) return std::nullopt;
      users = users_of(sum);
    } else if (!calls(floor, "aten::floor_")) {
      return std::nullopt;
    }
    if (users.size() != 2) return std::nullopt;
    const Node& add = program_.nodes[users[0]];
    const ValueId random = tensor_in(add, 0);
    const auto rate = number_in(add, 1);
    if (!calls(add, "aten::add") || random == kNoValue || !rate ||
        number_in(add, 2) != 1. || *rate <= 0 || *rate > 1) {
      return std::nullopt;
    }
    users = users_of(random);
    const bool is_uniform =
        users.size() == 2 && calls(program_.nodes[users[0]], "aten::rand");
    return is_uniform ? rate : std::nullopt;
  }

  Program& program_;
  std::vector<std::vector<int>> users_;  // nodes by memory, in order
};

}  // namespace

void analyze(Program& program, bool keep_random, bool concatenates) {
  move_assignments(program);
  delay_assignments(program);
  StochasticDepth(program).find();
  find_needed(program);
  remove_dead(program, keep_random);
  number_producers(program);
  find_pure(program);
  check_inputs(program);
  check_weights(program);
  check_outputs(program, concatenates);
}

// ---- Eval mode

InEval in_eval(const Program& program, const Node& node) {
  if (!node.needed) return InEval::kSkip;
  if (node.passed != kNoValue) return InEval::kPass;
  if (node.pure) return InEval::kRun;
  bool changes = false;  // a weight, by the operator's schema
  for (const ValueId each : node.writes) {
    const Origin origin = program.values[program.values[each].memory].origin;
    changes = changes || (each != node.running_mean &&
                          each != node.running_var && origin != Origin::kNode);
  }
  // The nodes in a body decide for themselves whether they are random.
  const bool switched = !node.training_flags.empty() ||
                        !node.dropout_rates.empty() || !node.bodies.empty();
  return changes || (node.random && !switched) ? InEval::kRefuse : InEval::kRun;
}

std::string refusal_of(const Node& node) {
  return node.random ? "is random and has no training flag"
                     : "changes a buffer on which the output depends";
}

std::vector<std::string> eval_problems(const Program& program) {
  std::vector<std::string> problems;
  for_each_node(program.nodes, [&](const Node& node) {
    if (in_eval(program, node) != InEval::kRefuse) return;
    problems.push_back(place_of(node) + " " + refusal_of(node));
  });
  return problems;
}

// ---- Dtypes

namespace {

bool is_dtype(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

bool has_floating_dtype(const Node& node) {
  if (!node.op) return false;
  const auto& arguments = node.op->schema().arguments();
  const std::size_t count = std::min(arguments.size(), node.arguments.size());
  for (std::size_t k = 0; k < count; ++k) {
    const Argument& argument = node.arguments[k];
    if (argument.kind == Argument::Kind::kConstant &&
        argument.constant.isInt() && is_dtype(arguments[k]) &&
        c10::isFloatingType(
            static_cast<c10::ScalarType>(argument.constant.toInt()))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> dtype_constants(const Program& program) {
  std::vector<std::string> lines;
  for_each_node(program.nodes, [&](const Node& node) {
    if (has_floating_dtype(node)) lines.push_back(place_of(node));
  });
  return lines;
}

// ---- Linear nodes

namespace {

// An operator that multiplies two matrices, and the places of its factors.
struct Product {
  const char* name;
  std::size_t input, weight;
  bool transposed;  // the operator takes [inputs, outputs]
};

constexpr std::array<Product, 4> kProducts = {{{"aten.linear", 0, 1, false},
                                               {"aten.addmm", 1, 2, true},
                                               {"aten.mm", 0, 1, true},
                                               {"aten.matmul", 0, 1, true}}};

bool is_parameter(const Program& program, ValueId value) {
  return value != kNoValue &&
         program.values[value].origin == Origin::kParameter;
}

}  // namespace

std::vector<LinearNode> find_linears(const Program& program) {
  std::vector<LinearNode> found;
  for (std::size_t k = 0; k < program.nodes.size(); ++k) {
    const Node& node = program.nodes[k];
    if (!node.op || node.module.empty()) continue;
    const std::string name = operator_name(node);
    const auto product = std::ranges::find_if(
        kProducts, [&](const Product& each) { return name == each.name; });
    if (product == kProducts.end()) continue;
    // An adapter is that of W x, and not of a multiple.
    const auto factor = node.op->schema().argumentIndexWithName("alpha");
    if (factor && number_in(node, *factor).value_or(1) != 1) continue;
    const ValueId weight = tensor_in(node, product->weight);
    if (!is_parameter(program, weight)) continue;
    const int number = program.values[weight].weight;
    if (program.weights[number].sizes.size() != 2) continue;
    found.push_back({static_cast<int>(k), node.module, number, product->input,
                     product->transposed});
  }
  return found;
}

std::set<std::string> module_names(const Program& program) {
  std::set<std::string> names;
  for_each_node(program.nodes,
                [&](const Node& node) { names.insert(node.module); });
  names.erase("");
  return names;
}

}  // namespace gpipe::exported
