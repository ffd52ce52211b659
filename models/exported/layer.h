// A layer of an exported program: some of its nodes, as a module.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/skip.h"
#include "models/exported/adapter.h"
#include "models/exported/analysis.h"
#include "models/exported/plan.h"
#include "models/exported/program.h"

namespace gpipe::exported {

// What a constant value depends on: the device and its stream and the autocast
// state, which are four numbers; then sizes, and buffers: the read of the file
// and their versions.
using ConstantKey = std::vector<int64_t>;

// The constant values of one model, for all its layers. A mask or a table of
// positions that several layers use is kept once per device and sizes.
// Thread-safe.
class ConstantCache {
 public:
  // A value of the program, and the place of the only layer that uses it; -1:
  // all layers do.
  using Id = std::pair<ValueId, int>;

  // Returns the value `id` for `key`; none() if it is not there.
  c10::IValue find(Id id, const ConstantKey& key);
  // Keeps a value. Forgets older ones of `id`, see kMostSizes and kMost.
  void insert(Id id, ConstantKey key, c10::IValue value);

 private:
  // How many numbers of a key are the device, the stream and the autocast
  // state.
  static constexpr int kPlace = 4;
  // How many values with these numbers are kept: a split gives micro-batches of
  // two sizes, in training and in evaluation. More values would fill the device
  // if each text has another length.
  static constexpr int kMostSizes = 4;
  static constexpr std::size_t kMost = 32;  // of all devices together

  std::mutex mutex_;
  std::map<Id, std::vector<std::pair<ConstantKey, c10::IValue>>> values_;
};

// What the layers of a model share.
struct Model {
  Program program;
  std::vector<LayerPlan> plans;  // of the layers, in order
  ConstantCache constants;
  std::atomic<int64_t> reads = 0;  // how often layers were made
  std::string name;                // a prefix of the names of skip tensors
  // See ExportedModel::use_buffer_sets(). Each set has a serial number, which
  // no deleted set had.
  std::map<int64_t, int64_t> set_serials;  // of the sets in use
  std::vector<int64_t> buffer_sets;        // serial numbers, by micro-batch
  int64_t sets_made = 0;
};

// Returns the values of a weight of the program, by its number.
using ReadWeight = std::function<at::Tensor(int weight)>;

// The weights of a layer: numbers in Program::weights, and the registered
// tensors.
using LayerWeights = std::vector<std::pair<int, at::Tensor>>;

// The adapter of a linear module of the program: what it belongs to, the nodes
// that multiply by its weight, and the layers that see it, by their places in
// Model::plans. The first of them has the weight, and so A and B, which pass
// from each of these layers to the next one as skip tensors.
struct AdapterRoute {
  adapters::AdapterSettings settings;
  std::vector<LinearNode> nodes;
  std::vector<int> layers;
};

// Returns the route of the adapter of `nodes`, which are those of one module
// and have the same weight.
AdapterRoute adapter_route(const Model& model,
                           adapters::AdapterSettings settings,
                           const std::vector<LinearNode>& nodes);

// Runs its nodes through LibTorch's dispatcher, so that autograd, autocast and
// gpipe's random numbers act as in a model written in C++. The weights are
// registered under Python's names. One thread at a time may run a layer.
class ProgramLayer : public torch::nn::Module, public Skippable {
 public:
  // `place`: of the layer's plan in Model::plans. The first layer takes the
  // program's inputs, and checks their sizes. `name`: the Python module of its
  // nodes. `number`: of the read of the file; layers with the same one have
  // equal weights until these change.
  ProgramLayer(std::shared_ptr<Model> model, int place, const std::string& name,
               const ReadWeight& read, int64_t number);

  const LayerWeights& weights() const { return weights_; }
  const Model& model() const { return *model_; }
  int place() const { return place_; }

  // Adds the output of an adapter to the results of its nodes, if the layer is
  // on the route. `adapter`: null in all layers but the first one of the route,
  // where it becomes the module "lora" of its Python module. All layers of the
  // model must be given the route, before they become a part of a pipeline.
  void add_adapter(const AdapterRoute& route,
                   std::shared_ptr<adapters::Adapter> adapter);
  // Removes an adapter from the first layer of its route. The others then get
  // no A and B, and add nothing.
  void remove_adapter(const adapters::Adapter& adapter);

  void pretty_print(std::ostream& stream) const override;

 protected:
  // Runs the nodes. `inputs`: those of the plan, any of them may be undefined.
  //
  // Throws c10::ValueError if an input of the program has sizes that the
  // program was not exported for, and in eval mode if a node cannot be switched
  // to it. Errors of an operator keep their type, and their text names the
  // node, its Python module and its line.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs);

 private:
  // An argument, with the slots of its values.
  struct Input {
    const Argument* argument;
    std::vector<int> slots;  // -1 for a number or none
  };
  struct Output {
    bool is_list;
    std::vector<int> slots;  // -1 for an unused value
  };
  // An adapter, with the slots of A and B, which are empty if it is removed.
  struct StepAdapter {
    adapters::AdapterSettings settings;
    int a, b;
  };
  struct Step;
  struct Graph {  // a body of a node
    std::vector<int> inputs;
    std::vector<Step> steps;
    std::vector<Input> outputs;
  };
  struct Step {
    const Node* node;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    std::vector<Graph> graphs;  // of control flow
    std::vector<int> released;  // slots that no later step reads
    InEval in_eval = InEval::kRun;
    int passed = -1;  // the slot of Node::passed
    int norm = -1;    // in norms_
    // Places of running statistics that no BatchNorm module holds.
    std::vector<int> loose_statistics;
    // An adapter, or null, and the place of its input among the arguments.
    const StepAdapter* adapter = nullptr;
    std::size_t adapted = 0;
  };
  struct Skip {
    int slot;
    std::string name;
    bool is_size;
  };
  struct Size {
    int slot, from, dimension;
    int64_t divisor, factor;
  };
  // A constant that later steps read.
  struct Constant {
    ValueId value;
    int slot;
    std::vector<int> sizes, buffers;  // slots on which it depends
  };
  using Slots = std::vector<c10::IValue>;

  static Names skip_names(const Model& model, const LayerPlan& plan);
  int slot_of(ValueId value);
  int new_slot();
  Skip skip_of(const Hop& hop);
  void register_weights(const LayerPlan& plan, const ReadWeight& read);
  void register_norms(const LayerPlan& plan, const ReadWeight& read);
  void add_weight(ValueId value, at::Tensor tensor);
  void compile(const LayerPlan& plan);
  Step step_of(const Node& node, int norm = -1);
  Input input_of(const Argument& argument);
  void find_constants(const LayerPlan& plan);
  static void find_releases(std::vector<Step>& steps, std::set<int> live);

  void check_inputs(const std::vector<at::Tensor>& inputs) const;
  // Puts the buffers of the set of this micro-batch, if there are sets, into
  // their slots.
  void use_buffer_set(Slots& slots);
  void run_constants(Slots& slots, c10::Device device);
  ConstantKey key_of(const Constant& constant, const Slots& slots,
                     c10::Device device) const;
  // A constant of buffers that have changed since they were read is the
  // layer's own, since other layers have other copies.
  ConstantCache::Id id_of(const Constant& constant, const Slots& slots) const;
  // `region`: that of the caller, in Program::regions.
  void run_steps(const std::vector<Step>& steps, Slots& slots,
                 c10::Device device, int region = 0);
  // Returns whether eval() skips a step, after storing what it passes.
  bool is_skipped(const Step& step, Slots& slots) const;
  // Replaces `stack` by the results of a node.
  void run_node(const Step& step, Slots& slots, c10::Device device,
                std::vector<c10::IValue>& stack);
  void run_control_flow(const Step& step, Slots& slots, c10::Device device,
                        std::vector<c10::IValue>& stack);
  // Moves the results of a node into their slots.
  static void store(const Step& step, std::vector<c10::IValue>& results,
                    Slots& slots);
  static void push_arguments(const std::vector<Input>& inputs,
                             const Slots& slots, c10::Device device,
                             std::vector<c10::IValue>& stack);
  void adapt_to_mode(const Step& step, std::vector<c10::IValue>& stack) const;

  const std::shared_ptr<Model> model_;
  const int place_;
  const int64_t number_;
  LayerWeights weights_;
  std::vector<std::shared_ptr<torch::nn::Module>> norms_;
  std::map<int, int> norm_of_node_;

  // The compiled form. Slots hold values while the layer runs.
  std::unordered_map<ValueId, int> slots_;
  std::vector<std::pair<int, at::Tensor>> own_;  // weights by slot
  std::unordered_map<int, int64_t> versions_;    // of `own_` as read, by slot
  std::vector<std::size_t> state_;  // places in own_ of buffers that change
  // Of `state_`, by the serial number of the set. Empty after a forward
  // without sets.
  std::map<int64_t, std::vector<at::Tensor>> buffer_sets_;
  std::vector<int> inputs_, outputs_;
  std::vector<Skip> pops_, stashes_;
  std::vector<Size> sizes_;
  std::vector<Step> numbers_;         // arithmetic on sizes
  std::vector<Step> constant_steps_;  // run if a constant is not in the cache
  std::vector<Constant> constants_;
  std::vector<Step> steps_;
  // Places of outputs with the memory of a constant.
  std::vector<int> cloned_outputs_;
  std::map<std::string, StepAdapter> adapters_;  // by the module's name
};

}  // namespace gpipe::exported
