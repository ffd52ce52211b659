#include "models/exported/operator_schema.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>

#include "models/exported/python_operators.h"

namespace gpipe::exported {
namespace {

constexpr std::string_view kOperators = "torch.ops.";

// Adds all alias sets of an argument or a result, those of list elements
// included.
void collect_sets(const c10::AliasInfo& info, std::vector<std::string>& sets) {
  for (const auto& set : info.beforeSets()) {
    sets.emplace_back(set.toUnqualString());
  }
  for (const auto& contained : info.containedTypes()) {
    collect_sets(contained, sets);
  }
}

std::vector<std::string> sets_of(const c10::AliasInfo* info) {
  std::vector<std::string> sets;
  if (info) collect_sets(*info, sets);
  return sets;
}

// Returns whether an operator updates running statistics, which its schema does
// not say.
bool updates_statistics(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::batch_norm" || name == "aten::instance_norm";
}

// Returns whether the flag `argument` is that of the module's training mode.
bool is_training_flag(const std::string& argument) {
  return argument == "train" || argument == "training" ||
         argument == "use_input_stats";
}

// Returns whether `node` has a training flag that is false, as in a program
// that was exported in eval mode.
bool is_switched_off(const Node& node) {
  const auto& formals = node.op->schema().arguments();
  for (std::size_t k = 0; k < node.arguments.size(); ++k) {
    const c10::IValue& constant = node.arguments[k].constant;
    if (is_training_flag(formals[k].name()) && constant.isBool() &&
        !constant.toBool()) {
      return true;
    }
  }
  return false;
}

// Returns whether neither the operator nor its parts have a gradient.
// LibTorch's own operators have one, or say that they are not differentiable.
bool lacks_gradient(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  for (const DispatchKey each :
       {DispatchKey::Autograd, DispatchKey::CompositeImplicitAutograd,
        DispatchKey::AutogradOther, DispatchKey::AutogradCPU,
        DispatchKey::AutogradCUDA}) {
    if (op.hasKernelForDispatchKey(each)) return false;
  }
  return true;
}

}  // namespace

bool is_operator(const std::string& target) {
  return target.starts_with(kOperators);
}

std::optional<c10::OperatorHandle> find_operator(const std::string& target) {
  register_python_operators();
  const std::string name = target.substr(kOperators.size());
  const std::size_t first = name.find('.'), last = name.rfind('.');
  if (first == std::string::npos || first == last) return std::nullopt;
  std::string overload = name.substr(last + 1);
  if (overload == "default") overload.clear();
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1),
       overload});
}

void note_argument(Node& node, const c10::Argument& formal,
                   Argument& argument) {
  const int place = static_cast<int>(node.arguments.size());
  if (formal.alias_info() && formal.alias_info()->isWrite()) {
    for (const Element& each : argument.elements) {
      if (each.value != kNoValue) node.writes.push_back(each.value);
    }
  }
  const c10::IValue& constant = argument.constant;
  if (is_training_flag(formal.name()) && constant.isBool() &&
      constant.toBool()) {
    node.training_flags.push_back(place);
  }
  if (formal.name() == "dropout_p" && constant.isDouble()) {
    node.dropout_rates.push_back(place);
  }
  if (formal.name() == "cudnn_enabled" || formal.name() == "cudnn_enable") {
    argument.constant = true;
  }
  if (!updates_statistics(*node.op) || argument.elements.empty()) return;
  if (formal.name() == "running_mean") {
    node.running_mean = argument.elements[0].value;
  } else if (formal.name() == "running_var") {
    node.running_var = argument.elements[0].value;
  }
}

void note_operator(Node& node) {
  node.random = node.op->hasTag(at::Tag::nondeterministic_seeded) &&
                !is_switched_off(node);
  node.lacks_gradient = lacks_gradient(*node.op);
  node.is_size = node.op->operator_name().name == "aten::sym_size" &&
                 node.op->operator_name().overload_name == "int";
  if (updates_statistics(*node.op) && node.running_mean == kNoValue) {
    // A norm without running statistics uses those of the batch in every mode.
    node.training_flags.clear();
  }
  if (node.running_mean != kNoValue && node.training_flags.empty()) {
    node.running_mean = node.running_var = kNoValue;
  }
  for (const ValueId each : {node.running_mean, node.running_var}) {
    if (each != kNoValue) node.writes.push_back(each);
  }
}

std::vector<std::size_t> shared_arguments(const c10::FunctionSchema& schema,
                                          std::size_t result) {
  std::vector<std::size_t> places;
  const auto sets = sets_of(schema.returns()[result].alias_info());
  if (sets.empty()) return places;
  for (std::size_t k = 0; k < schema.arguments().size(); ++k) {
    const auto own = sets_of(schema.arguments()[k].alias_info());
    if (std::any_of(own.begin(), own.end(), [&](const std::string& set) {
          return std::find(sets.begin(), sets.end(), set) != sets.end();
        })) {
      places.push_back(k);
    }
  }
  return places;
}

}  // namespace gpipe::exported
