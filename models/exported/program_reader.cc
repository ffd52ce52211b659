#include "models/exported/program_reader.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "gpipe/base/text.h"
#include "models/exported/operators.h"

namespace gpipe::exported {

// ---- The place in the Python model

namespace {

constexpr std::size_t kLongest = 200;
constexpr char kFrame[] = "File \"";

// Returns a frame as one line.
std::string one_line(const std::string& frame) {
  const std::size_t end = frame.find('\n');
  std::string line = frame.substr(0, end);
  if (end != std::string::npos) {
    const std::size_t begin = frame.find_first_not_of(" \n", end);
    if (begin != std::string::npos) {
      line += ": " + frame.substr(begin, frame.find('\n', begin) - begin);
    }
  }
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "...";
  return line;
}

// Returns whether PyTorch, or code that it generates, has the frame.
bool is_in_torch(const std::string& frame) {
  const std::string file = frame.substr(0, frame.find('"', sizeof kFrame - 1));
  return file.find("torch/nn/") != std::string::npos ||
         file.find("site-packages/torch/") != std::string::npos ||
         file.find("<eval_with_key>") != std::string::npos;
}

}  // namespace

std::string source_line(const std::string& stack_trace) {
  std::string innermost;
  std::size_t end = std::string::npos;
  for (;;) {
    const std::size_t begin =
        end == 0 ? std::string::npos : stack_trace.rfind(kFrame, end - 1);
    if (begin == std::string::npos) return innermost;
    const std::string frame = stack_trace.substr(begin, end - begin);
    if (!is_in_torch(frame)) return one_line(frame);
    if (innermost.empty()) innermost = one_line(frame);
    end = begin;
  }
}

std::string module_path(const std::string& module_stack) {
  const std::string entry = module_stack.substr(module_stack.rfind(';') + 1);
  const std::size_t begin = entry.find(',');
  if (begin == std::string::npos) return "";
  std::string path =
      entry.substr(begin + 1, entry.find(',', begin + 1) - begin - 1);
  // A module that is called several times has paths such as "layer@1".
  path.erase(std::min(path.find('@'), path.size()));
  constexpr char kSelf[] = "L['self'].";
  if (path.starts_with(kSelf)) path.erase(0, sizeof kSelf - 1);
  return path;
}

// ---- Calls of graphs

namespace {

constexpr std::string_view kNoGradRegion = "wrap_with_set_grad_enabled",
                           kAutocastRegion = "wrap_with_autocast",
                           kCheckpointRegion = "tag_activation_checkpoint";

// Returns the type of a device such as "cuda"; none if LibTorch knows no such
// device.
std::optional<c10::DeviceType> device_type(const Json& name) {
  try {
    return c10::Device(text(name)).type();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// `graph`: that of the region, which has the devices of the export.
Autocast read_autocast(const Json& device, const Json& dtype,
                       const Json& enabled, const Json& cache,
                       const Json& graph) {
  Autocast autocast;
  const auto tensors = graph.find("tensor_values");
  if (tensors != graph.end() && !tensors->empty()) {
    const auto own = device_type(field(device, "as_string"));
    const bool is_exports =
        own && std::ranges::any_of(*tensors, [&](const Json& each) {
          return device_type(field(field(each, "device"), "type")) == own;
        });
    // Nothing runs on a device that LibTorch does not know, or has autocast on
    // the meta device.
    if (!is_exports) autocast.device = own.value_or(c10::kMeta);
  }
  if (alternative(dtype).name == "as_scalar_type") {
    autocast.dtype = dtype_of(integer(alternative(dtype).value));
  }
  autocast.enabled = boolean(field(enabled, "as_bool"));
  if (alternative(cache).name == "as_bool") {
    autocast.cache = boolean(alternative(cache).value);
  }
  return autocast;
}

}  // namespace

std::optional<RegionCall> read_region(const Json& json,
                                      const std::string& target,
                                      const Region& outer) {
  const std::string_view kind = higher_order_name(target);
  if (kind != kNoGradRegion && kind != kAutocastRegion &&
      kind != kCheckpointRegion) {
    return std::nullopt;
  }
  const Json& inputs = list(field(json, "inputs"));
  std::size_t at = 0;  // the graph's place among the arguments
  const auto argument = [&](std::size_t k) -> const Json& {
    TORCH_CHECK_VALUE(k < inputs.size(), "has only ", inputs.size(),
                      " arguments; the file is damaged");
    return field(inputs[k], "arg");
  };
  while (alternative(argument(at)).name != "as_graph") ++at;
  const Json& graph = field(field(argument(at), "as_graph"), "graph");
  Region region = outer;
  if (kind == kNoGradRegion) {
    region.no_grad |= !boolean(field(argument(0), "as_bool"));
  } else if (kind == kAutocastRegion) {
    region.autocasts.push_back(read_autocast(argument(0), argument(1),
                                             argument(2), argument(3), graph));
  }
  return RegionCall{region, graph, inputs, at + 1};
}

// ---- Nodes

namespace {

using internal::in_quotes;

// Graphs inside graphs. Python's own limit on nesting is of this size.
constexpr int kDeepest = 20;

// Adds the nodes of one graph and those of its regions to `nodes`, and their
// values to `program`.
class GraphReader {
 public:
  GraphReader(const Json& graph, Names& names, Program& program,
              std::vector<Node>& nodes, int region, int depth)
      : graph_(graph),
        values_(graph),
        names_(names),
        program_(program),
        nodes_(nodes),
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
    if (is_higher_order(node.target)) {
      read_higher_order(json, node);
      return;
    }
    // The dtypes and devices of the export; a pipeline may have others.
    if (node.target == "torch.ops.aten._assert_tensor_metadata.default") return;
    if (is_transform(node.target)) {
      read_transform(json, node);
      return;
    }
    if (is_operator(node.target)) {
      node.op = find_operator(node.target);
      if (!node.op) {
        refuse(json, node, advice_on(node.target));
        return;
      }
      if (!read_operator(json, node)) return;
    } else {
      node.operation = find_operation(node.target);
      if (!node.operation) {
        refuse(json, node, advice_on(node.target));
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
    note_reads(node);
    add_results(json, node);
    nodes_.push_back(std::move(node));
  }

  static void note_reads(Node& node) {
    for (const Argument& argument : node.arguments) {
      for (const Element& each : argument.elements) {
        if (each.value != kNoValue) node.reads.push_back(each.value);
      }
    }
  }

  Argument read(const Json& json, const c10::TypePtr& type) {
    return read_argument(json, type, names_);
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
    if (const ValueId tensor = tensor_in(node, 0); tensor != kNoValue) {
      squeeze_fixed_sizes(node, program_.values[tensor].sizes);
    }
    note_operator(node);
    return true;
  }

  // Adds the values that `node` computes. Results may share the memory of
  // arguments, as the schema says.
  void add_results(const Json& json, Node& node) {
    const Json& outputs = list(field(json, "outputs"));
    const std::size_t returned =
        node.op ? node.op->schema().returns().size() : 1;
    TORCH_CHECK_VALUE(outputs.size() <= returned, "has ", outputs.size(),
                      " outputs, but the operator returns ", returned);
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
      result.values.push_back(define(value_name(output), kind == "as_tensor"));
    }
    return result;
  }

  ValueId define(const std::string& name, bool is_tensor) {
    const ValueId id = values_.add(program_, name, is_tensor, Origin::kNode);
    TORCH_CHECK_VALUE(names_.emplace(name, id).second, "the value ",
                      in_quotes(name), " is computed twice");
    return id;
  }

  // Gives the values of a result the memory of the arguments that the result
  // may share.
  void share_memory(const Node& node, std::size_t place, const Result& result) {
    auto arguments = shared_arguments(node.op->schema(), place);
    if (const auto k = undeclared_alias(node)) arguments.push_back(*k);
    for (const std::size_t k : arguments) {
      const std::vector<Element>& elements = node.arguments[k].elements;
      if (elements.empty()) continue;
      for (std::size_t i = 0; i < result.values.size(); ++i) {
        const ValueId from = elements[std::min(i, elements.size() - 1)].value;
        if (from == kNoValue || result.values[i] == kNoValue) continue;
        program_.values[result.values[i]].memory = program_.values[from].memory;
      }
    }
  }

  // Refuses a call of a transform, which has five nodes or more, once.
  void read_transform(const Json& json, const Node& node) {
    const bool is_known =
        transform_ && (node.source.empty() || node.source == *transform_);
    if (is_known) {
      define_results(json);
      return;
    }
    transform_ = node.source;
    refuse(json, node, advice_on(node.target));
  }

  // Notes that `node` cannot run, and defines its results for later nodes.
  void refuse(const Json& json, const Node& node, const std::string& reason) {
    program_.problems.push_back(place_of(node) + " " + reason);
    define_results(json);
  }

  void define_results(const Json& json) {
    for (const Json& output : list(field(json, "outputs"))) {
      const std::string& kind = alternative(output).name;
      if (kind == "as_tensor" || kind == "as_tensors" ||
          is_named_number(output)) {
        add_result(output);
      }
    }
  }

  // ---- Regions and control flow

  void read_higher_order(const Json& json, Node& node) {
    if (const std::optional<Control> control = find_control(node.target)) {
      node.control = *control;
      read_control(json, node);
      return;
    }
    const std::optional<RegionCall> call =
        read_region(json, node.target, program_.regions[region_]);
    if (!call) {
      refuse(json, node, advice_on(node.target));
      return;
    }
    program_.regions.push_back(call->region);
    inline_graph(*call, field(json, "outputs"),
                 static_cast<int>(program_.regions.size()) - 1);
  }

  // Reads control flow: graphs and lists of operands.
  void read_control(const Json& json, Node& node) {
    check_depth();
    std::vector<const Json*> graphs;
    for (const Json& input : list(field(json, "inputs"))) {
      const Json& argument = field(input, "arg");
      const auto [kind, value] = alternative(argument);
      if (kind == "as_graph") {
        graphs.push_back(&field(value, "graph"));
      } else if (kind != "as_string") {  // the places of changed operands
        node.arguments.push_back(read(argument, c10::ListType::ofTensors()));
      }
    }
    const bool chooses = node.control == Control::kCond;
    const std::size_t bodies =
        chooses || node.control == Control::kWhile ? 2 : 1;
    const std::size_t lists = node.control == Control::kScan ? 3 : 2;
    TORCH_CHECK_VALUE(graphs.size() == bodies && node.arguments.size() == lists,
                      "has ", graphs.size(), " graphs and ",
                      node.arguments.size(),
                      " other arguments, but is known with ", bodies, " and ",
                      lists, "; export with PyTorch 2.11 to 2.15");
    std::vector<ValueId> operands;
    for (std::size_t k = chooses ? 1 : 0; k < lists; ++k) {
      TORCH_CHECK_VALUE(node.arguments[k].kind == Argument::Kind::kTensors,
                        "does not pass a list to its graphs; the file is "
                        "damaged");
      for (const Element& each : node.arguments[k].elements) {
        TORCH_CHECK_VALUE(each.value != kNoValue,
                          "passes None to a graph, which is not supported");
        operands.push_back(each.value);
      }
    }
    for (const Json* each : graphs) {
      node.bodies.push_back(read_body(*each, operands));
    }
    note_reads(node);
    for (const Json& output : list(field(json, "outputs"))) {
      const auto [kind, value] = alternative(output);
      if (kind != "as_tensors") {
        node.results.push_back(add_result(output));
        continue;
      }
      for (const Json& each : list(value)) {
        node.results.push_back(
            {false, {define(text(field(each, "name")), true)}});
      }
    }
    check_outputs(node);
    note_bodies(node, operands);
    nodes_.push_back(std::move(node));
  }

  // Reads a graph whose inputs share the memory of `operands`.
  Body read_body(const Json& graph, const std::vector<ValueId>& operands) {
    Body body;
    const Json& inputs = list(field(graph, "inputs"));
    TORCH_CHECK_VALUE(inputs.size() == operands.size(), "passes ",
                      operands.size(), " values to a graph of ", inputs.size(),
                      " inputs");
    Names inner;
    GraphReader reader(graph, inner, program_, body.nodes, region_, depth_ + 1);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const std::string& name = value_name(inputs[k]);
      const ValueId id = reader.values_.add(
          program_, name, !is_named_number(inputs[k]), Origin::kNode);
      program_.values[id].memory = program_.values[operands[k]].memory;
      inner.emplace(name, id);
      body.inputs.push_back(id);
    }
    reader.read();
    for (const Json& output : list(field(graph, "outputs"))) {
      body.outputs.push_back(
          read_argument(output, c10::NumberType::get(), inner));
      check_single(body.outputs.back());
    }
    return body;
  }

  static void check_single(const Argument& argument) {
    TORCH_CHECK_VALUE(argument.kind == Argument::Kind::kValue ||
                          argument.kind == Argument::Kind::kConstant,
                      "has a list where a graph needs one value; the file is "
                      "damaged");
  }

  // Checks that the bodies of `node` return what the node needs.
  static void check_outputs(const Node& node) {
    if (node.control == Control::kCond) check_single(node.arguments[0]);
    const std::size_t replaced =
        node.control == Control::kWhile || node.control == Control::kScan
            ? node.arguments[0].elements.size()
            : 0;
    for (const Body& body : node.bodies) {
      const bool is_condition =
          node.control == Control::kWhile && &body == &node.bodies[0];
      const std::size_t wanted = is_condition ? 1 : node.results.size();
      const bool has_more = node.results.size() > replaced;
      TORCH_CHECK_VALUE(
          body.outputs.size() == wanted && node.results.size() >= replaced &&
              !(has_more && node.control == Control::kWhile),
          "has ", node.results.size(), " results, and a graph with ",
          body.outputs.size(), " outputs; the file is damaged");
    }
  }

  // Notes in `node` what its bodies do: random numbers, changed operands,
  // results with the memory of operands.
  void note_bodies(Node& node, const std::vector<ValueId>& operands) {
    const auto note_operand = [&](ValueId value, const auto& note) {
      const ValueId memory = program_.values[value].memory;
      const auto found = std::ranges::find_if(operands, [&](ValueId each) {
        return program_.values[each].memory == memory;
      });
      if (found != operands.end()) note(*found);
    };
    for (const Body& body : node.bodies) {
      for (const Node& each : body.nodes) {
        node.random = node.random || each.random;
        for (const ValueId written : each.writes) {
          note_operand(written, [&](ValueId operand) {
            node.writes.push_back(operand);
          });
        }
      }
      if (node.control == Control::kWhile && &body == &node.bodies[0]) continue;
      for (std::size_t k = 0; k < node.results.size(); ++k) {
        const ValueId result = node.results[k].values[0];
        if (result == kNoValue) continue;
        for (const Element& each : body.outputs[k].elements) {
          note_operand(each.value, [&](ValueId operand) {
            program_.values[result].memory = program_.values[operand].memory;
          });
        }
      }
    }
  }

  void check_depth() const {
    TORCH_CHECK_VALUE(depth_ < kDeepest, "graphs are nested more than ",
                      kDeepest, " levels deep");
  }

  // Adds the nodes of a region, whose number in Program::regions is `region`.
  // `outputs`: those of the call.
  void inline_graph(const RegionCall& call, const Json& outputs, int region) {
    check_depth();
    const Json& inner_inputs = list(field(call.graph, "inputs"));
    const std::size_t passed = call.inputs.size() - call.first;
    TORCH_CHECK_VALUE(passed == inner_inputs.size(), "passes ", passed,
                      " values to a region of ", inner_inputs.size(),
                      " inputs");
    Names inner;
    for (std::size_t k = 0; k < inner_inputs.size(); ++k) {
      const Json& outer = field(call.inputs[call.first + k], "arg");
      inner.emplace(value_name(inner_inputs[k]),
                    find_value(names_, value_name(outer)));
    }
    GraphReader(call.graph, inner, program_, nodes_, region, depth_ + 1).read();

    const std::vector<const std::string*> outside = output_names(outputs);
    const Json& inner_outputs = list(field(call.graph, "outputs"));
    TORCH_CHECK_VALUE(outside.size() == inner_outputs.size(), "has ",
                      outside.size(), " outputs, but its region has ",
                      inner_outputs.size());
    for (std::size_t k = 0; k < outside.size(); ++k) {
      if (!outside[k]) continue;
      names_[*outside[k]] = find_value(inner, value_name(inner_outputs[k]));
    }
  }

  // Returns the names of all outputs of a call, those in lists included; null
  // for an output that is None.
  static std::vector<const std::string*> output_names(const Json& outputs) {
    std::vector<const std::string*> names;
    for (const Json& output : list(outputs)) {
      const auto [kind, value] = alternative(output);
      if (kind == "as_tensors") {
        for (const Json& each : list(value)) {
          names.push_back(&text(field(each, "name")));
        }
      } else {
        names.push_back(kind == "as_none" ? nullptr : &value_name(output));
      }
    }
    return names;
  }

  const Json& graph_;
  const GraphValues values_;
  Names& names_;
  Program& program_;
  std::vector<Node>& nodes_;
  const int region_, depth_;
  // The source line of the last transform that was refused.
  std::optional<std::string> transform_;
};

// ---- Programs

constexpr int64_t kMajorVersion = 8;

void check_version(const Json& json) {
  const Json& version = field(json, "schema_version");
  const int64_t major = integer(field(version, "major"));
  TORCH_CHECK_VALUE(major == kMajorVersion, "has version ", major, ".",
                    integer(field(version, "minor")),
                    " of the schema, but only ", kMajorVersion,
                    ".x is read; export again with PyTorch 2.11 to 2.15");
  const Json* verifiers = find_field(json, "verifiers");
  if (!verifiers) return;
  for (const Json& each : list(*verifiers)) {
    TORCH_CHECK_VALUE(
        text(each) == "TRAINING", "is in dialect ", in_quotes(text(each)),
        ", but only 'TRAINING' can be trained; save what torch.export.export "
        "returns, without run_decompositions() and other passes");
  }
}

void read_ranges(const Json& json, Symbols& symbols) {
  for (const auto& [expression, limits] :
       object(field(json, "range_constraints")).items()) {
    const Extent extent = symbols.parse(expression);
    if (extent.symbol == Extent::kNone || extent.factor != 1) continue;
    Range& range = symbols.range(extent.symbol);
    if (const Json* least = find_field(limits, "min_val")) {
      range.least = integer(*least);
    }
    if (const Json* most = find_field(limits, "max_val")) {
      range.most = integer(*most);
    }
  }
}

// Adds the weights that are not in the signature: names of tied weights, and
// weights that no node reads. Removes repeated ones.
void complete_order(Program& program) {
  std::vector<bool> seen(program.weights.size());
  std::vector<int> order;
  const auto add = [&](int weight) {
    if (!seen[weight]) order.push_back(weight);
    seen[weight] = true;
  };
  for (const int each : program.weight_order) add(each);
  for (std::size_t k = 0; k < program.weights.size(); ++k) {
    add(static_cast<int>(k));
  }
  program.weight_order = std::move(order);
}

// Reads the inputs and outputs of a program.
class SignatureReader {
 public:
  SignatureReader(const Json& module, Program& program)
      : program_(program),
        signature_(field(module, "signature")),
        values_(field(module, "graph")) {
    for (std::size_t k = 0; k < program.weights.size(); ++k) {
      weights_.emplace(program.weights[k].name, static_cast<int>(k));
    }
  }

  // Adds the inputs to the program, and their names to `names`.
  void read_inputs(Names& names) {
    for (const Json& spec : list(field(signature_, "input_specs"))) {
      const auto [kind, value] = alternative(spec);
      if (kind == "parameter") {
        add_weight(names, value, "parameter_name", Origin::kParameter);
      } else if (kind == "buffer") {
        add_weight(names, value, "buffer_name", Origin::kBuffer);
      } else if (kind == "tensor_constant") {
        add_weight(names, value, "tensor_constant_name", Origin::kBuffer);
      } else if (kind == "user_input") {
        add_input(names, field(value, "arg"));
      } else if (kind != "constant_input") {
        problem("an input is a " + kind +
                ", which has no counterpart in C++; export the model without "
                "custom objects and tokens");
      }
    }
  }

  // Adds the outputs `chosen`, or all of them.
  void read_outputs(const Names& names, const std::vector<int64_t>& chosen) {
    std::vector<ValueId> found;
    for (const Json& spec : list(field(signature_, "output_specs"))) {
      const auto [kind, value] = alternative(spec);
      if (kind != "user_output") {
        problem("an output is a " + kind +
                ", as in a decomposed program; save what torch.export.export "
                "returns");
        continue;
      }
      const auto [type, argument] = alternative(field(value, "arg"));
      found.push_back(type == "as_tensor"
                          ? find_value(names, text(field(argument, "name")))
                          : kNoValue);
    }
    if (chosen.empty()) {
      // Numbers and None are not returned.
      for (const ValueId each : found) {
        if (each != kNoValue) program_.outputs.push_back(each);
      }
    }
    for (const int64_t place : chosen) {
      TORCH_CHECK_VALUE(
          place >= 0 && place < static_cast<int64_t>(found.size()),
          "ExportedOptions::outputs has the place ", place,
          ", but the program has ", found.size(), " outputs, counted from 0");
      TORCH_CHECK_VALUE(found[place] != kNoValue, "output ", place,
                        " in ExportedOptions::outputs is not a tensor");
      program_.outputs.push_back(found[place]);
    }
  }

 private:
  void problem(std::string text) {
    program_.problems.push_back(std::move(text));
  }

  void add_weight(Names& names, const Json& spec, const char* field_name,
                  Origin origin) {
    const std::string& name = text(field(field(spec, "arg"), "name"));
    const std::string& python = text(field(spec, field_name));
    const auto found = weights_.find(python);
    TORCH_CHECK_VALUE(found != weights_.end(), "has no values of ",
                      in_quotes(python));
    program_.weight_order.push_back(found->second);
    // Tied weights are one value.
    const int first = program_.weights[found->second].tied_to;
    auto& value = value_of_weight_.try_emplace(first, kNoValue).first->second;
    if (value == kNoValue) {
      value = values_.add(program_, name, /*is_tensor=*/true, origin);
      program_.values[value].weight = found->second;
    }
    names.emplace(name, value);
  }

  void add_input(Names& names, const Json& argument) {
    const std::string& kind = alternative(argument).name;
    const bool is_tensor = kind == "as_tensor";
    if (is_tensor || is_named_number(argument)) {
      const std::string& name = value_name(argument);
      const ValueId id = values_.add(program_, name, is_tensor, Origin::kInput);
      if (is_tensor) program_.inputs.push_back(id);
      names.emplace(name, id);
    }
    if (kind == "as_custom_obj" || is_named_number(argument)) {
      const Json& value = alternative(argument).value;
      const std::string& name =
          text(field(value, kind == "as_custom_obj" ? "name" : "as_name"));
      problem("input " + in_quotes(name) + " is of kind " + in_quotes(kind) +
              ", but a pipeline passes tensors only; pass a tensor, or fix the "
              "value in the export");
    }
  }

  Program& program_;
  const Json& signature_;
  const GraphValues values_;
  std::unordered_map<std::string, int> weights_;
  std::map<int, ValueId> value_of_weight_;
};

// Ties weights without values, whose records do not show which are tied. The
// export keeps each name of a tied weight, but all nodes read the same one. So
// a weight that no node reads is tied to the one that its module reads instead.
void tie_without_values(Program& program) {
  std::map<std::string, std::set<int>> read_by;  // by module
  std::set<int> read;
  for_each_node(program.nodes, [&](const Node& node) {
    for (const ValueId each : node.reads) {
      const int weight = program.values[each].weight;
      if (weight < 0) continue;
      read.insert(weight);
      read_by[node.module].insert(weight);
    }
  });
  const auto module_of = [](const Weight& weight) {
    return weight.name.substr(0, weight.name.rfind('.'));
  };
  for (std::size_t k = 0; k < program.weights.size(); ++k) {
    Weight& weight = program.weights[k];
    const auto number = static_cast<int>(k);
    if (weight.has_values || !weight.is_parameter || read.contains(number)) {
      continue;
    }
    const std::string module = module_of(weight);
    for (const int each : read_by[module]) {
      Weight& other = program.weights[each];
      if (module_of(other) == module || !other.is_parameter ||
          other.sizes != weight.sizes || other.dtype != weight.dtype) {
        continue;
      }
      weight.tied_to = other.tied_to = std::min(number, other.tied_to);
    }
  }
}

}  // namespace

Program read_program(Archive& archive, const std::vector<int64_t>& outputs) {
  const std::string record = "models/" + archive.model() + ".json";
  const std::string source = "record " + in_quotes(record) + " ";
  return read_json(archive.text(record), source, {}, [&](const Json& json) {
    check_version(json);
    Program program;
    if (const Json* version = find_field(json, "torch_version")) {
      program.torch_version = text(*version);
    }
    read_ranges(json, program.symbols);
    program.weights = read_weight_list(archive);
    const Json& module = field(json, "graph_module");
    SignatureReader signature(module, program);
    Names names;
    signature.read_inputs(names);
    complete_order(program);
    GraphReader(field(module, "graph"), names, program, program.nodes,
                /*region=*/0, /*depth=*/0)
        .read();
    signature.read_outputs(names, outputs);
    tie_without_values(program);
    return program;
  });
}

}  // namespace gpipe::exported
