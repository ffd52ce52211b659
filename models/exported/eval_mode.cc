#include "models/exported/eval_mode.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <optional>

namespace gpipe::exported {
namespace {

bool calls(const Node& node, const char* name) {
  return node.op && node.op->operator_name().name == name;
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

// Returns the tensor in an argument; kNoValue if there is none.
ValueId tensor_in(const Node& node, std::size_t place) {
  if (place >= node.arguments.size()) return kNoValue;
  const Argument& argument = node.arguments[place];
  return argument.kind == Argument::Kind::kValue ? argument.elements[0].value
                                                 : kNoValue;
}

ValueId result_of(const Node& node) {
  return node.results.size() == 1 && node.results[0].values.size() == 1
             ? node.results[0].values[0]
             : kNoValue;
}

bool is_same(const Extent& a, const Extent& b) {
  return a.symbol == b.symbol && a.factor == b.factor;
}

// Finds the noise of stochastic depth, see find_stochastic_depth().
class Finder {
 public:
  explicit Finder(Program& program)
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
        std::find(outputs.begin(), outputs.end(), tensor) != outputs.end()) {
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
      const bool is_one = is_same(a.sizes[d], {Extent::kNone, 1});
      if (!is_one && (d > 0 || !is_same(a.sizes[d], b.sizes[d]))) return false;
    }
    return true;
  }

  // Returns whether the result of node `number` may be `tensor` itself.
  bool may_pass(int number, ValueId tensor) const {
    const ValueId result = result_of(program_.nodes[number]);
    if (result == kNoValue) return false;
    const Value& a = program_.values[result];
    const Value& b = program_.values[tensor];
    if (a.dtype != b.dtype ||
        !std::equal(a.sizes.begin(), a.sizes.end(), b.sizes.begin(),
                    b.sizes.end(), is_same)) {
      return false;
    }
    const bool is_read_later = users_of(tensor).back() > number;
    return !changes_after(number, tensor) &&
           (!changes_after(number, result) ||
            (!is_read_later &&
             program_.values[b.memory].origin == Origin::kNode));
  }

  bool changes_after(int number, ValueId value) const {
    const ValueId memory = program_.values[value].memory;
    const std::vector<int> users = users_of(value);
    return std::any_of(users.begin(), users.end(), [&](int user) {
      const auto& writes = program_.nodes[user].writes;
      return user > number &&
             std::any_of(writes.begin(), writes.end(), [&](ValueId each) {
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

InEval in_eval(const Program& program, const Node& node) {
  if (!node.needed) {
    return node.results.empty() ? InEval::kRun : InEval::kSkip;
  }
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

void find_stochastic_depth(Program& program) { Finder(program).find(); }

}  // namespace gpipe::exported
