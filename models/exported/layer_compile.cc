// ProgramLayer's constructor: weights, and nodes as steps with slots.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include "models/exported/layer.h"

namespace gpipe::exported {
namespace {

std::string skip_name(const Model& model, const Hop& hop) {
  return model.name + "/" + model.program.values[hop.value].name + "." +
         std::to_string(hop.value) + "." + std::to_string(hop.hop);
}

// Returns "layers.3.norm" for the weight "layers.3.norm.running_mean", if its
// last name is `last`; else "".
std::string module_of(const std::string& weight, const std::string& last) {
  if (!weight.ends_with("." + last)) return "";
  return weight.substr(0, weight.size() - last.size() - 1);
}

double real_argument(const Node& node, const char* name) {
  const auto place = node.op->schema().argumentIndexWithName(name);
  if (!place) return 0;
  const c10::IValue& value = node.arguments[*place].constant;
  return value.isDouble() ? value.toDouble() : 0;
}

}  // namespace

ProgramLayer::Names ProgramLayer::skip_names(const Model& model,
                                             const LayerPlan& plan) {
  Names names;
  for (const Hop& each : plan.stashes) {
    names.stash.push_back(skip_name(model, each));
  }
  for (const Hop& each : plan.pops) names.pop.push_back(skip_name(model, each));
  return names;
}

ProgramLayer::ProgramLayer(std::shared_ptr<Model> model, const LayerPlan& plan,
                           const std::string& name, bool is_first,
                           const ReadWeight& read)
    : Module(name),
      Skippable(skip_names(*model, plan)),
      model_(std::move(model)),
      is_first_(is_first) {
  register_norms(plan, read);
  register_weights(plan, read);
  compile(plan);
}

int ProgramLayer::slot_of(ValueId value) {
  return slots_.try_emplace(value, static_cast<int>(slots_.size()))
      .first->second;
}

ProgramLayer::Skip ProgramLayer::skip_of(const Hop& hop) {
  return {slot_of(hop.value), skip_name(*model_, hop),
          !model_->program.values[hop.value].is_tensor};
}

void ProgramLayer::add_weight(ValueId value, at::Tensor tensor) {
  const Value& weight = model_->program.values[value];
  if (weight.origin == Origin::kBuffer && weight.written) {
    state_.push_back(own_.size());
  }
  weights_.emplace_back(weight.weight, tensor);
  own_.emplace_back(slot_of(value), std::move(tensor));
}

// Registers the modules of all norms whose values belong to this layer under
// the names of a BatchNorm.
void ProgramLayer::register_norms(const LayerPlan& plan,
                                  const ReadWeight& read) {
  const Program& program = model_->program;
  std::map<std::string, ValueId> own;  // by the weight's name
  for (const ValueId each : plan.weights) {
    own.emplace(program.weights[program.values[each].weight].name, each);
  }
  std::map<std::string, int> norms;  // by the module's name
  for (const int k : plan.nodes) {
    const Node& node = program.nodes[k];
    if (node.running_mean == kNoValue ||
        node.op->operator_name().name != "aten::batch_norm") {
      continue;
    }
    const Value& mean = program.values[node.running_mean];
    if (mean.weight < 0 || program.weights[mean.weight].sizes.size() != 1) {
      continue;
    }
    const std::string name =
        module_of(program.weights[mean.weight].name, "running_mean");
    if (name.empty()) continue;
    if (const auto known = norms.find(name); known != norms.end()) {
      norm_of_node_[k] = known->second;
      continue;
    }
    // The values that the node reads must be those of one module.
    std::map<std::string, ValueId> values;
    for (const char* each : {"weight", "bias", "running_mean", "running_var",
                             "num_batches_tracked"}) {
      if (const auto found = own.find(name + "." + each); found != own.end()) {
        values.emplace(each, found->second);
      }
    }
    const auto is_own = [&](const char* argument, const char* last) {
      const auto place = node.op->schema().argumentIndexWithName(argument);
      const auto& elements = node.arguments[*place].elements;
      const auto found = values.find(last);
      if (elements.empty()) return found == values.end();
      return found != values.end() && found->second == elements[0].value;
    };
    if (!is_own("running_mean", "running_mean") ||
        !is_own("running_var", "running_var") || !is_own("weight", "weight") ||
        !is_own("bias", "bias") ||
        values.count("weight") != values.count("bias")) {
      continue;
    }
    norms_.emplace_back(*this, name, program.weights[mean.weight].sizes.at(0),
                        values.count("weight") > 0,
                        real_argument(node, "momentum"),
                        real_argument(node, "eps"));
    for (const auto& [last, value] : values) {
      const int weight = program.values[value].weight;
      add_weight(value,
                 norms_.back().set(last, read(weight),
                                   program.weights[weight].requires_grad));
    }
    norms.emplace(name, static_cast<int>(norms_.size()) - 1);
    norm_of_node_[k] = static_cast<int>(norms_.size()) - 1;
  }
}

void ProgramLayer::register_weights(const LayerPlan& plan,
                                    const ReadWeight& read) {
  const Program& program = model_->program;
  for (const ValueId each : plan.weights) {
    if (slots_.count(each)) continue;  // of a norm
    const int number = program.values[each].weight;
    const Weight& weight = program.weights[number];
    at::Tensor tensor = read(number);
    register_weight(*this, weight.name, tensor, weight.is_parameter,
                    weight.requires_grad);
    add_weight(each, std::move(tensor));
  }
}

void ProgramLayer::compile(const LayerPlan& plan) {
  for (const ValueId each : plan.inputs) inputs_.push_back(slot_of(each));
  for (const Hop& each : plan.pops) pops_.push_back(skip_of(each));
  for (const SizeSource& each : plan.sizes) {
    sizes_.push_back({slot_of(each.value),
                      each.from == kNoValue ? -1 : slot_of(each.from),
                      each.dimension, each.divisor, each.factor});
  }
  find_constants(plan);
  for (const int k : plan.nodes) {
    const auto norm = norm_of_node_.find(k);
    steps_.push_back(step_of(model_->program.nodes[k],
                             norm == norm_of_node_.end() ? -1 : norm->second));
  }
  for (const Hop& each : plan.stashes) stashes_.push_back(skip_of(each));
  for (const ValueId each : plan.outputs) {
    const int slot = slot_of(each);
    outputs_.push_back(slot);
    for (const Constant& constant : constants_) {
      if (constant.slot == slot) {
        cloned_outputs_.push_back(static_cast<int>(outputs_.size()) - 1);
      }
    }
  }
  std::set<int> live(outputs_.begin(), outputs_.end());
  for (const Skip& each : stashes_) live.insert(each.slot);
  find_releases(steps_, std::move(live));
}

ProgramLayer::Input ProgramLayer::input_of(const Argument& argument) {
  Input input{&argument, {}};
  for (const Element& each : argument.elements) {
    input.slots.push_back(each.value == kNoValue ? -1 : slot_of(each.value));
  }
  return input;
}

ProgramLayer::Step ProgramLayer::step_of(const Node& node, int norm) {
  const Program& program = model_->program;
  Step step;
  step.node = &node;
  step.norm = norm;
  for (const Argument& each : node.arguments) {
    step.inputs.push_back(input_of(each));
  }
  for (const Result& result : node.results) {
    Output output{result.is_list, {}};
    for (const ValueId each : result.values) {
      output.slots.push_back(each == kNoValue ? -1 : slot_of(each));
    }
    step.outputs.push_back(std::move(output));
  }
  for (const Body& body : node.bodies) {
    Graph& graph = step.graphs.emplace_back();
    for (const ValueId each : body.inputs) {
      graph.inputs.push_back(slot_of(each));
    }
    for (const Node& each : body.nodes) graph.steps.push_back(step_of(each));
    std::set<int> live;
    for (const Argument& each : body.outputs) {
      graph.outputs.push_back(input_of(each));
      const std::vector<int>& slots = graph.outputs.back().slots;
      live.insert(slots.begin(), slots.end());
    }
    find_releases(graph.steps, std::move(live));
  }
  step.in_eval = in_eval(program, node);
  if (node.passed != kNoValue) step.passed = slot_of(node.passed);
  if (norm < 0 && node.running_mean != kNoValue) {
    for (const char* each : {"running_mean", "running_var"}) {
      if (const auto place = node.op->schema().argumentIndexWithName(each)) {
        step.loose_statistics.push_back(*place);
      }
    }
  }
  return step;
}

// Separates the constant nodes into arithmetic on sizes, which is cheaper than
// a look-up, and nodes whose results are kept.
void ProgramLayer::find_constants(const LayerPlan& plan) {
  const Program& program = model_->program;
  struct Origins {
    std::set<int> sizes, buffers;  // slots
  };
  std::map<int, Origins> kept;  // by slot
  std::set<ValueId> in_constants;
  for (const int k : plan.constants) {
    const Node& node = program.nodes[k];
    const bool reads_kept = std::any_of(
        node.reads.begin(), node.reads.end(),
        [&](ValueId each) { return kept.count(slot_of(each)) > 0; });
    if (node.operation && !reads_kept) {
      numbers_.push_back(step_of(node));
      continue;
    }
    constant_steps_.push_back(step_of(node));
    Origins origins;
    for (const ValueId each : node.reads) {
      const int slot = slot_of(each);
      if (const auto known = kept.find(slot); known != kept.end()) {
        origins.sizes.insert(known->second.sizes.begin(),
                             known->second.sizes.end());
        origins.buffers.insert(known->second.buffers.begin(),
                               known->second.buffers.end());
      } else if (program.values[each].is_tensor) {
        origins.buffers.insert(slot);
      } else {
        origins.sizes.insert(slot);
      }
    }
    for_each_result(node, [&](ValueId each) {
      kept[slot_of(each)] = origins;
      in_constants.insert(each);
    });
  }
  // Those that other nodes read, or that leave the layer.
  std::set<ValueId> read;
  const auto note = [&](ValueId each) {
    if (in_constants.count(each)) read.insert(each);
  };
  for (const int k : plan.nodes) {
    for (const ValueId each : program.nodes[k].reads) note(each);
  }
  for (const ValueId each : plan.outputs) note(each);
  for (const ValueId each : read) {
    const Origins& origins = kept[slot_of(each)];
    constants_.push_back({each,
                          slot_of(each),
                          {origins.sizes.begin(), origins.sizes.end()},
                          {origins.buffers.begin(), origins.buffers.end()}});
  }
}

// Finds the last use of each slot, so that memory is freed as in eager Python.
// `live`: slots that are read after the steps.
void ProgramLayer::find_releases(std::vector<Step>& steps, std::set<int> live) {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto release = [&](const std::vector<int>& slots) {
      for (const int each : slots) {
        if (each >= 0 && live.insert(each).second) {
          step->released.push_back(each);
        }
      }
    };
    for (const Input& each : step->inputs) release(each.slots);
    for (const Output& each : step->outputs) release(each.slots);
  }
}

}  // namespace gpipe::exported
