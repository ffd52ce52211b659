// An exported program in memory: values, and nodes that compute them. Sizes are
// multiples of symbols, such as the rows of a micro-batch.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpipe::exported {

// The size of a dimension, or an integer that is computed from sizes: `factor`
// times the value of symbol number `symbol`. A number that is known when the
// program is exported has symbol kNone.
struct Extent {
  static constexpr int kNone = -1;
  int symbol = kNone;
  int64_t factor = 0;

  friend bool operator==(const Extent&, const Extent&) = default;
};

// The limits of a symbol, from the dynamic_shapes of the export.
struct Range {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};

// The symbols of a program.
class Symbols {
 public:
  // Returns the extent of an expression of the file. A symbol ("s77", or
  // "Symbol('s77', positive=True, integer=True)") and an integer multiple of
  // one are understood. Any other expression becomes a symbol of its own: two
  // equal expressions have equal values.
  Extent parse(const std::string& expression);

  // Returns the name of a symbol, or an expression.
  const std::string& name(int symbol) const { return names_[symbol]; }
  Range& range(int symbol) { return ranges_[symbol]; }
  const Range& range(int symbol) const { return ranges_[symbol]; }
  int size() const { return static_cast<int>(names_.size()); }

  // Returns the largest value, or the largest int64_t if there is no limit.
  int64_t largest(const Extent& extent) const;

  // Returns "3", "s77" or "2*s77".
  std::string text(const Extent& extent) const;

 private:
  int number_of(const std::string& name);

  std::vector<std::string> names_;
  std::vector<Range> ranges_;
  std::unordered_map<std::string, int> numbers_;
};

// The place of a value in Program::values.
using ValueId = int;
constexpr ValueId kNoValue = -1;

enum class Origin { kNode, kInput, kParameter, kBuffer };

// A tensor or a number that nodes read or compute.
struct Value {
  std::string name;  // in the file
  bool is_tensor = true;
  Origin origin = Origin::kNode;
  int weight = -1;            // in Program::weights, for parameters and buffers
  std::vector<Extent> sizes;  // of a tensor
  std::optional<c10::ScalarType> dtype;  // of a tensor, if the file says so
  // Whether the elements of a tensor fill its memory without gaps, in the
  // example of the export.
  bool dense = true;
  std::optional<Extent> extent;  // of an integer computed from sizes
  int producer = -1;             // the node that computes it
  // The first value with the same memory; the value itself if it has its own.
  ValueId memory = kNoValue;
  // A node changes the memory in place. Set by analyze().
  bool written = false;
};

// An element of a list argument: a value, or else a number.
struct Element {
  ValueId value = kNoValue;
  int64_t number = 0;
};

// An argument of a node.
struct Argument {
  enum class Kind {
    kConstant,
    kValue,            // elements[0]
    kTensors,          // a list of tensors
    kOptionalTensors,  // a list of tensors or none
    kIntegers,         // a list of numbers, some of them computed
    kDevice,           // the device on which the node runs
  };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  std::vector<Element> elements;
  // The operator wants a tensor, so that a computed number becomes one.
  bool wants_tensor = false;
};

// A result of a node: one value, or a list of them. A value that the program
// does not use is kNoValue.
struct Result {
  bool is_list = false;
  std::vector<ValueId> values;
};

// The autocast state of a region, for the device type on which it runs.
struct Autocast {
  // The type on which it works; none: any. A region for the devices of the
  // export works on every device on which the program runs.
  std::optional<c10::DeviceType> device;
  bool enabled = false;
  bool cache = true;
  std::optional<c10::ScalarType> dtype;  // none: LibTorch's default
};

// What holds for some nodes: `with torch.no_grad()`, `with torch.autocast`.
struct Region {
  bool no_grad = false;
  std::vector<Autocast> autocasts;  // the innermost last
};

// Operators of Python that run graphs, their bodies:
// - kCond: the first body if the predicate holds, else the second one.
//   Arguments: the predicate, the operands.
// - kWhile: the second body as long as the first one returns true. Arguments:
//   the values that the second body replaces, those that stay.
// - kScan: the body once for each row of some tensors. Arguments: the values
//   that the body replaces, the tensors, those that stay.
// - kMap: the same without values that the body replaces.
enum class Control { kNone, kCond, kWhile, kScan, kMap };

// An operation on one or two numbers (integers, floating-point numbers, truth
// values). `second` is ignored if there is one operand. Three operands are a
// choice: the first one, a truth value, says which of the others is the result,
// and `compute` is null.
struct Operation {
  c10::IValue (*compute)(const c10::IValue& first, const c10::IValue& second);
  int operands;
};

struct Node;

// A graph that a node runs, perhaps several times. Its nodes read only values
// of the body.
struct Body {
  std::vector<ValueId> inputs;
  std::vector<Node> nodes;
  std::vector<Argument> outputs;  // values or constants
};

// One operation.
struct Node {
  std::string name;    // in the file
  std::string target;  // "torch.ops.aten.linear.default"
  std::string module;  // the Python module that called it: "layers.3.mlp"
  std::string source;  // a frame of Python's stack, or ""
  // An operator of LibTorch, an operation on numbers, or control flow.
  std::optional<c10::OperatorHandle> op;
  std::optional<Operation> operation;
  Control control = Control::kNone;
  std::vector<Body> bodies;  // of control flow
  std::vector<Argument> arguments;
  std::vector<Result> results;
  std::vector<ValueId> reads, writes;  // writes: arguments changed in place
  int region = 0;                      // in Program::regions
  bool random = false;
  // The operator has no gradient, and LibTorch would leave it out.
  bool lacks_gradient = false;
  // Reads a tensor's size, which is known from any tensor with that size.
  bool is_size = false;
  // batch_norm or instance_norm that updates running statistics in training:
  // their values.
  ValueId running_mean = kNoValue, running_var = kNoValue;
  // Arguments that eval() sets to false, or to 0.
  std::vector<int> training_flags, dropout_rates;

  // Set by analyze():
  // The value that the node returns in eval() instead of its result, one of
  // `reads`; kNoValue if there is none.
  ValueId passed = kNoValue;
  // The node depends on sizes and constant buffers only. Each layer computes
  // it again.
  bool pure = false;
  // The node is a check, or an output of the program or a check depends on it
  // in eval(). Other nodes only change buffers, or make noise for training.
  bool needed = true;
};

// A parameter, a buffer or a constant of the Python model.
struct Weight {
  std::string name;  // in Python
  std::string record;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  // in elements
  bool requires_grad = false;
  bool is_parameter = false;
  bool persistent = true;  // whether state_dict() has it
  // False if the model was exported on the meta device. Then the record is
  // empty, and all weights have the same one.
  bool has_values = true;
  // The first weight with the same tensor, which is this one or an earlier one.
  // A weight without elements is not tied.
  int tied_to = -1;
  // Other weights that share some, but not all, memory with this one in Python.
  // Of two such weights, one lists the other.
  std::vector<int> overlapping;
};

// Calls `use` with each value that `node` computes and the program uses.
template <typename Use>
void for_each_result(const Node& node, const Use& use) {
  for (const Result& result : node.results) {
    for (const ValueId each : result.values) {
      if (each != kNoValue) use(each);
    }
  }
}

// Calls `use` with each of `nodes` and with the nodes of their bodies.
template <typename Nodes, typename Use>
void for_each_node(Nodes& nodes, const Use& use) {
  for (auto& node : nodes) {
    use(node);
    for (auto& body : node.bodies) for_each_node(body.nodes, use);
  }
}

struct Program {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Region> regions = {Region()};
  std::vector<Weight> weights;
  std::vector<int> weight_order;  // numbers of all weights, in Python's order
  Symbols symbols;
  std::vector<ValueId> inputs, outputs;
  std::vector<std::string> problems;  // why the program cannot run
  std::string torch_version;
};

// Returns "node 'linear_2' (torch.ops.aten.linear.default) of module
// 'layers.3.mlp', File "model.py", line 12, in forward: return ...".
std::string place_of(const Node& node);

// Returns dtype and sizes of a tensor as text: "Float [s77, 10]".
std::string shape_text(const Program& program, ValueId tensor);

// Returns the extent of the size that `node` reads, if it is such a node and
// the extent is known; else null.
const Extent* size_extent(const Program& program, const Node& node);

// Returns the tensor in the argument at `place`; kNoValue if there is none.
ValueId tensor_in(const Node& node, std::size_t place);

// Returns the operator's name without its packages: "aten.linear".
std::string operator_name(const Node& node);

}  // namespace gpipe::exported
