#include "exported/graph_reader.h"

#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "exported/arguments.h"
#include "exported/schema_numbers.h"
#include "exported/source_line.h"
#include "weights/in_quotes.h"

namespace gpipe::exported {
namespace {

using internal::in_quotes;

// Regions inside regions. Python's own limit on nesting is of this size.
constexpr int kDeepest = 20;

constexpr std::string_view kOperators = "torch.ops.",
                           kHigherOrder = "torch.ops.higher_order.",
                           kNoGradRegion = "wrap_with_set_grad_enabled",
                           kAutocastRegion = "wrap_with_autocast",
                           kCheckpointRegion = "tag_activation_checkpoint";

bool begins_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// Returns the name in a union of a tensor or of a number.
const std::string& name_in(const Json& argument) {
  const auto [kind, value] = alternative(argument);
  if (kind == "as_tensor") return text(field(value, "name"));
  TORCH_CHECK_VALUE(begins_with(kind, "as_sym_"),
                    "expected a value, but found ", in_quotes(kind),
                    "; the file is damaged");
  return text(field(value, "as_name"));
}

// Returns the operator of "aten.add.Tensor", or nullopt if LibTorch does not
// have it.
std::optional<c10::OperatorHandle> find_operator(const std::string& target) {
  const std::string name = target.substr(kOperators.size());
  const std::size_t first = name.find('.'), last = name.rfind('.');
  if (first == std::string::npos || first == last) return std::nullopt;
  std::string overload = name.substr(last + 1);
  if (overload == "default") overload.clear();
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1),
       overload});
}

// Returns all alias sets of an argument or a result, those of list elements
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

// Operators that update running statistics, which their schemas do not say.
bool updates_statistics(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::batch_norm" || name == "aten::instance_norm";
}

// The flag of these operators is that of the module's training mode.
bool is_training_flag(const std::string& argument) {
  return argument == "train" || argument == "training" ||
         argument == "use_input_stats";
}

class GraphReader {
 public:
  GraphReader(const Json& graph, Names& names, Program& program, int region,
              int depth)
      : graph_(graph),
        names_(names),
        program_(program),
        region_(region),
        depth_(depth) {}

  void read() {
    for (const Json& json : list(field(graph_, "nodes"))) {
      Node node = start(json);
      try {
        read_node(json, node);
      } catch (c10::Error& error) {
        error.add_context("in " + place_of(node));
        throw;
      }
    }
  }

 private:
  // Returns a node with its names and its place in the model.
  Node start(const Json& json) const {
    Node node;
    node.target = text(field(json, "target"));
    if (const Json* name = find_field(json, "name")) node.name = text(*name);
    if (const Json* metadata = find_field(json, "metadata")) {
      if (const Json* trace = find_field(*metadata, "stack_trace")) {
        node.source = source_line(text(*trace));
      }
      if (const Json* stack = find_field(*metadata, "nn_module_stack")) {
        node.module = module_path(text(*stack));
      }
    }
    node.region = region_;
    return node;
  }

  void read_node(const Json& json, Node& node) {
    if (begins_with(node.target, kHigherOrder)) {
      read_higher_order(json, node);
      return;
    }
    // The dtypes and devices of the export; a pipeline may have others.
    if (node.target == "torch.ops.aten._assert_tensor_metadata.default") return;
    if (begins_with(node.target, kOperators)) {
      node.op = find_operator(node.target);
      if (!node.op) {
        refuse(json, node, unknown_operator(node));
        return;
      }
      if (!read_operator(json, node)) return;
    } else {
      node.operation = find_operation(node.target);
      if (!node.operation) {
        refuse(json, node, "is no operation that gpipe knows");
        return;
      }
      for (const Json& input : list(field(json, "inputs"))) {
        node.arguments.push_back(
            read(field(input, "arg"), c10::NumberType::get()));
      }
      TORCH_CHECK_VALUE(
          static_cast<int>(node.arguments.size()) == node.operation->operands,
          "has ", node.arguments.size(), " operands, but the operation has ",
          node.operation->operands);
    }
    for (const Argument& argument : node.arguments) {
      for (const Element& each : argument.elements) {
        if (each.value != kNoValue) node.reads.push_back(each.value);
      }
    }
    add_results(json, node);
    program_.nodes.push_back(std::move(node));
  }

  static std::string unknown_operator(const Node& node) {
    if (node.target.find("grouped_mm") != std::string::npos) {
      return "is an operator that LibTorch does not have; export the model "
             "with experts_implementation=\"batched_mm\"";
    }
    return "is an operator that LibTorch does not have; link the library that "
           "registers it, or export the model without it";
  }

  Argument read(const Json& json, const c10::TypePtr& type) {
    return read_argument(json, type, [&](const std::string& name) {
      return find_value(names_, name);
    });
  }

  // Reads the arguments by the operator's schema. Returns false, after noting a
  // problem, if they cannot be passed.
  bool read_operator(const Json& json, Node& node) {
    const c10::FunctionSchema& schema = node.op->schema();
    std::map<std::string, const Json*> given;
    for (const Json& input : list(field(json, "inputs"))) {
      given.emplace(text(field(input, "name")), &field(input, "arg"));
    }
    for (const c10::Argument& formal : schema.arguments()) {
      const auto found = given.find(formal.name());
      Argument argument;
      if (found != given.end()) {
        try {
          argument = read(*found->second, formal.type());
        } catch (const c10::Error& error) {
          if (alternative(*found->second).name == "as_graph" ||
              alternative(*found->second).name == "as_custom_obj" ||
              alternative(*found->second).name == "as_operator") {
            refuse(json, node, error.what_without_backtrace());
            return false;
          }
          throw;
        }
        given.erase(found);
      } else if (formal.default_value()) {
        argument.constant = *formal.default_value();
      } else {
        refuse(json, node,
               "lacks the argument '" + formal.name() +
                   "' of the operator in this LibTorch; export with the same "
                   "version of PyTorch");
        return false;
      }
      note_argument(node, formal, argument);
      node.arguments.push_back(std::move(argument));
    }
    if (!given.empty()) {
      refuse(json, node,
             "has an argument " + in_quotes(given.begin()->first) +
                 ", which the operator of this LibTorch does not have; export "
                 "with the same version of PyTorch");
      return false;
    }
    node.random = node.op->hasTag(at::Tag::nondeterministic_seeded);
    node.is_size = node.op->operator_name().name == "aten::sym_size" &&
                   node.op->operator_name().overload_name == "int";
    return true;
  }

  // Notes what the schema says about `argument`, the next one of `node`.
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
    // The exporting machine's setting must not decide about this one's.
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

  // Adds the values that `node` computes. Results may share the memory of
  // arguments, as the schema says.
  void add_results(const Json& json, Node& node) {
    const Json& outputs = list(field(json, "outputs"));
    const std::size_t returned =
        node.op ? node.op->schema().returns().size() : 1;
    TORCH_CHECK_VALUE(outputs.size() <= returned, "has ", outputs.size(),
                      " outputs, but the operator returns ", returned);
    // Running statistics change in training only.
    if (node.running_mean != kNoValue && node.training_flags.empty()) {
      node.running_mean = node.running_var = kNoValue;
    }
    for (const ValueId each : {node.running_mean, node.running_var}) {
      if (each != kNoValue) node.writes.push_back(each);
    }
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      Result result = add_result(outputs[k]);
      if (node.op) share_memory(node, k, result);
      node.results.push_back(std::move(result));
    }
  }

  Result add_result(const Json& output) {
    Result result;
    const auto [kind, value] = alternative(output);
    if (kind == "as_tensors") {
      result.is_list = true;
      for (const Json& each : list(value)) {
        result.values.push_back(define(text(field(each, "name")), true));
      }
    } else if (kind == "as_none") {
      result.values.push_back(kNoValue);
    } else {
      result.values.push_back(define(name_in(output), kind == "as_tensor"));
    }
    return result;
  }

  ValueId define(const std::string& name, bool is_tensor) {
    const ValueId id =
        add_value(program_, graph_, name, is_tensor, Origin::kNode);
    program_.values[id].producer = static_cast<int>(program_.nodes.size());
    TORCH_CHECK_VALUE(names_.emplace(name, id).second, "the value ",
                      in_quotes(name), " is computed twice");
    return id;
  }

  void share_memory(const Node& node, std::size_t place, const Result& result) {
    const c10::FunctionSchema& schema = node.op->schema();
    const auto sets = sets_of(schema.returns()[place].alias_info());
    if (sets.empty()) return;
    for (std::size_t k = 0; k < node.arguments.size(); ++k) {
      if (node.arguments[k].elements.empty()) continue;
      for (const auto& set : sets_of(schema.arguments()[k].alias_info())) {
        if (std::find(sets.begin(), sets.end(), set) == sets.end()) continue;
        const ValueId from = node.arguments[k].elements[0].value;
        if (from == kNoValue) continue;
        for (const ValueId each : result.values) {
          if (each != kNoValue) {
            program_.values[each].memory = program_.values[from].memory;
          }
        }
      }
    }
  }

  // Notes that `node` cannot run, and defines its results for later nodes.
  void refuse(const Json& json, const Node& node, const std::string& reason) {
    program_.problems.push_back(place_of(node) + " " + reason);
    for (const Json& output : list(field(json, "outputs"))) {
      const auto [kind, value] = alternative(output);
      if (kind == "as_tensor" || kind == "as_tensors" ||
          begins_with(kind, "as_sym_")) {
        add_result(output);
      }
    }
  }

  // ---- Regions

  void read_higher_order(const Json& json, const Node& node) {
    const std::string_view kind =
        std::string_view(node.target).substr(kHigherOrder.size());
    if (kind != kNoGradRegion && kind != kAutocastRegion &&
        kind != kCheckpointRegion) {
      refuse(json, node,
             "is control flow, which is not supported; rewrite the model with "
             "torch.where, or fix the condition before the export");
      return;
    }
    const Json& inputs = list(field(json, "inputs"));
    std::size_t at = 0;  // the graph's place among the arguments
    const auto argument = [&](std::size_t k) -> const Json& {
      TORCH_CHECK_VALUE(k < inputs.size(), "has only ", inputs.size(),
                        " arguments; the file is damaged");
      return field(inputs[k], "arg");
    };
    while (alternative(argument(at)).name != "as_graph") ++at;
    Region region = program_.regions[region_];
    if (kind == kNoGradRegion) {
      region.no_grad |= !boolean(field(argument(0), "as_bool"));
    } else if (kind == kAutocastRegion) {
      region.autocast = read_autocast(argument(1), argument(2), argument(3));
    }
    program_.regions.push_back(region);
    const int number = static_cast<int>(program_.regions.size()) - 1;
    inline_graph(field(field(argument(at), "as_graph"), "graph"), inputs,
                 at + 1, field(json, "outputs"), number);
  }

  static Autocast read_autocast(const Json& dtype, const Json& enabled,
                                const Json& cache) {
    Autocast autocast;
    if (alternative(dtype).name == "as_scalar_type") {
      autocast.dtype = dtype_of(integer(alternative(dtype).value));
    }
    autocast.enabled = boolean(field(enabled, "as_bool"));
    if (alternative(cache).name == "as_bool") {
      autocast.cache = boolean(alternative(cache).value);
    }
    return autocast;
  }

  void inline_graph(const Json& graph, const Json& arguments, std::size_t first,
                    const Json& outputs, int region) {
    TORCH_CHECK_VALUE(depth_ < kDeepest, "regions are nested more than ",
                      kDeepest, " levels deep");
    const Json& inner_inputs = list(field(graph, "inputs"));
    TORCH_CHECK_VALUE(arguments.size() - first == inner_inputs.size(),
                      "passes ", arguments.size() - first,
                      " values to a region of ", inner_inputs.size(),
                      " inputs");
    Names inner;
    for (std::size_t k = 0; k < inner_inputs.size(); ++k) {
      inner.emplace(
          name_in(inner_inputs[k]),
          find_value(names_, name_in(field(arguments[first + k], "arg"))));
    }
    GraphReader(graph, inner, program_, region, depth_ + 1).read();

    std::vector<const std::string*> outside;
    for (const Json& output : list(outputs)) {
      const auto [kind, value] = alternative(output);
      if (kind == "as_tensors") {
        for (const Json& each : list(value)) {
          outside.push_back(&text(field(each, "name")));
        }
      } else {
        outside.push_back(kind == "as_none" ? nullptr : &name_in(output));
      }
    }
    const Json& inner_outputs = list(field(graph, "outputs"));
    TORCH_CHECK_VALUE(outside.size() == inner_outputs.size(), "has ",
                      outside.size(), " outputs, but its region has ",
                      inner_outputs.size());
    for (std::size_t k = 0; k < outside.size(); ++k) {
      if (!outside[k]) continue;
      names_[*outside[k]] = find_value(inner, name_in(inner_outputs[k]));
    }
  }

  const Json& graph_;
  Names& names_;
  Program& program_;
  const int region_, depth_;
};

// Returns the value that a union SymInt had in the example of the export; -1 if
// the file does not say.
int64_t example_of(const Json& json) {
  const auto [kind, value] = alternative(json);
  if (kind == "as_int") return integer(value);
  const Json* hint = find_field(value, "hint");
  const Json* number = hint ? find_field(*hint, "as_int") : nullptr;
  return number ? integer(*number) : -1;
}

// Returns whether a tensor of these sizes and strides has no gaps. Unknown
// sizes count as dense.
bool is_dense(const Json& sizes, const Json& strides) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (std::size_t k = 0; k < list(sizes).size(); ++k) {
    if (k >= list(strides).size()) return true;
    const int64_t size = example_of(sizes[k]), stride = example_of(strides[k]);
    if (size < 0 || stride < 0) return true;
    if (size > 1) dimensions.emplace_back(stride, size);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride != expected) return false;
    if (__builtin_mul_overflow(expected, size, &expected)) return true;
  }
  return true;
}

// Returns the extent in a union SymInt of the schema.
Extent read_extent(const Json& json, Symbols& symbols) {
  const auto [kind, value] = alternative(json);
  if (kind == "as_int") return {Extent::kNone, integer(value)};
  return symbols.parse(text(field(value, "expr_str")));
}

}  // namespace

ValueId find_value(const Names& names, const std::string& name) {
  const auto found = names.find(name);
  TORCH_CHECK_VALUE(found != names.end(), "the value ", in_quotes(name),
                    " is read before it is computed; the file is damaged");
  return found->second;
}

ValueId add_value(Program& program, const Json& graph, const std::string& name,
                  bool is_tensor, Origin origin) {
  const auto id = static_cast<ValueId>(program.values.size());
  Value value;
  value.name = name;
  value.is_tensor = is_tensor;
  value.origin = origin;
  value.memory = id;
  if (is_tensor) {
    const Json* meta = find_field(field(graph, "tensor_values"), name.c_str());
    if (meta) {
      for (const Json& each : list(field(*meta, "sizes"))) {
        value.sizes.push_back(read_extent(each, program.symbols));
      }
      value.dense = is_dense(field(*meta, "sizes"), field(*meta, "strides"));
      value.dtype = dtype_of(integer(field(*meta, "dtype")));
    }
  } else if (const Json* extent =
                 find_field(field(graph, "sym_int_values"), name.c_str())) {
    value.extent = read_extent(*extent, program.symbols);
  }
  program.values.push_back(std::move(value));
  return id;
}

void read_nodes(const Json& graph, Names& names, Program& program) {
  GraphReader(graph, names, program, /*region=*/0, /*depth=*/0).read();
}

}  // namespace gpipe::exported
