#include "models/exported/program_reader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "models/exported/graph_reader.h"
#include "models/exported/json.h"
#include "models/exported/value_reader.h"
#include "models/exported/weight_list.h"
#include "models/weights/in_quotes.h"

namespace gpipe::exported {
namespace {

using internal::in_quotes;

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
        graph_(field(module, "graph")) {
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
      value = add_value(program_, graph_, name, /*is_tensor=*/true, origin);
      program_.values[value].weight = found->second;
    }
    names.emplace(name, value);
  }

  void add_input(Names& names, const Json& argument) {
    const auto [kind, value] = alternative(argument);
    if (kind == "as_tensor") {
      const std::string& name = text(field(value, "name"));
      const ValueId id =
          add_value(program_, graph_, name, /*is_tensor=*/true, Origin::kInput);
      program_.inputs.push_back(id);
      names.emplace(name, id);
    } else if (kind == "as_custom_obj" || is_named_number(argument)) {
      problem("an input is of kind " + in_quotes(kind) +
              ", but a pipeline passes tensors only; pass a tensor, or fix the "
              "value in the export");
    }
  }

  Program& program_;
  const Json& signature_;
  const Json& graph_;
  std::unordered_map<std::string, int> weights_;
  std::map<int, ValueId> value_of_weight_;
};

}  // namespace

Program read_program(Archive& archive, const std::vector<int64_t>& outputs) {
  const std::string record = "models/" + archive.model() + ".json";
  const Json json = parse_json(archive.text(record), record);
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
  read_nodes(field(module, "graph"), names, program);
  signature.read_outputs(names, outputs);
  return program;
}

}  // namespace gpipe::exported
