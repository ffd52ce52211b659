#include "models/exported/operators.h"

#include <ATen/Functions.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <unordered_map>

namespace gpipe::exported {

// ---- Arithmetic on numbers

namespace {

using c10::IValue;

bool both_integers(const IValue& a, const IValue& b) {
  return !a.isDouble() && !b.isDouble();
}

int64_t whole(const IValue& value) {
  TORCH_CHECK_VALUE(value.isInt() || value.isBool(),
                    "expected an integer, but ", "found a ", value.tagKind());
  return value.isBool() ? int64_t(value.toBool()) : value.toInt();
}

double real(const IValue& value) {
  return value.isDouble() ? value.toDouble()
                          : static_cast<double>(whole(value));
}

// Checks that the result of an operation on integers fits.
void check_fits(bool fits) {
  TORCH_CHECK_VALUE(fits,
                    "an integer computed from sizes does not fit into 64 bits");
}

int64_t add(int64_t a, int64_t b) {
  int64_t result = 0;
  check_fits(!__builtin_add_overflow(a, b, &result));
  return result;
}
int64_t subtract(int64_t a, int64_t b) {
  int64_t result = 0;
  check_fits(!__builtin_sub_overflow(a, b, &result));
  return result;
}
int64_t multiply(int64_t a, int64_t b) {
  int64_t result = 0;
  check_fits(!__builtin_mul_overflow(a, b, &result));
  return result;
}

void check_divisor(bool is_zero) {
  TORCH_CHECK_VALUE(!is_zero, "a division by zero in a computation of sizes");
}

int64_t floor_divide(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) return subtract(0, a);
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = multiply(result, base);
    if (exponent > 1) base = multiply(base, base);
  }
  return result;
}

void check_shift(int64_t count) {
  TORCH_CHECK_VALUE(count >= 0, "a shift by ", count,
                    " bits in a computation of sizes");
}

IValue python_power(const IValue& a, const IValue& b) {
  if (both_integers(a, b) && whole(b) >= 0) return power(whole(a), whole(b));
  return std::pow(real(a), real(b));
}

IValue python_modulo(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) {
    const int64_t divisor = whole(b);
    check_divisor(divisor == 0);
    if (divisor == -1) return int64_t{0};
    return whole(a) - floor_divide(whole(a), divisor) * divisor;
  }
  check_divisor(real(b) == 0);
  const double rest = std::fmod(real(a), real(b));
  return rest != 0 && (rest < 0) != (real(b) < 0) ? rest + real(b) : rest;
}

IValue python_floor_divide(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) return floor_divide(whole(a), whole(b));
  check_divisor(real(b) == 0);
  return std::floor(real(a) / real(b));
}

// Returns a floating-point number as an integer. Throws if it has none.
int64_t to_integer(double value) {
  TORCH_CHECK_VALUE(std::abs(value) < 9.2e18, "the number ", value,
                    " does not fit into an integer of 64 bits");
  return static_cast<int64_t>(value);
}

template <int64_t (*kIntegers)(int64_t, int64_t), typename Reals>
IValue arithmetic(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) return kIntegers(whole(a), whole(b));
  return Reals()(real(a), real(b));
}

template <typename Function>
IValue applied(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) return Function()(whole(a), whole(b));
  return Function()(real(a), real(b));
}

template <double (*kFunction)(double)>
IValue function(const IValue& a, const IValue&) {
  return kFunction(real(a));
}

template <double (*kRound)(double)>
IValue rounded(const IValue& a, const IValue&) {
  return a.isDouble() ? to_integer(kRound(a.toDouble())) : whole(a);
}

constexpr auto kLarger = [](auto a, auto b) { return std::max(a, b); };
constexpr auto kSmaller = [](auto a, auto b) { return std::min(a, b); };

}  // namespace

std::optional<Operation> find_operation(const std::string& target) {
  static const auto* const operations =
      new std::unordered_map<std::string, Operation>{
          {"_operator.add", {arithmetic<add, std::plus<double>>, 2}},
          {"_operator.sub", {arithmetic<subtract, std::minus<double>>, 2}},
          {"_operator.mul", {arithmetic<multiply, std::multiplies<double>>, 2}},
          {"_operator.truediv",
           {[](const IValue& a, const IValue& b) -> IValue {
              check_divisor(real(b) == 0);
              return real(a) / real(b);
            },
            2}},
          {"_operator.floordiv", {python_floor_divide, 2}},
          {"_operator.mod", {python_modulo, 2}},
          {"_operator.pow", {python_power, 2}},
          {"_operator.neg",
           {[](const IValue& a, const IValue&) -> IValue {
              if (a.isDouble()) return -a.toDouble();
              return subtract(0, whole(a));
            },
            1}},
          {"_operator.pos",
           {[](const IValue& a, const IValue&) -> IValue { return a; }, 1}},
          {"_operator.and_",
           {[](const IValue& a, const IValue& b) -> IValue {
              if (a.isBool() && b.isBool()) return a.toBool() && b.toBool();
              return whole(a) & whole(b);
            },
            2}},
          {"_operator.or_",
           {[](const IValue& a, const IValue& b) -> IValue {
              if (a.isBool() && b.isBool()) return a.toBool() || b.toBool();
              return whole(a) | whole(b);
            },
            2}},
          {"_operator.lshift",
           {[](const IValue& a, const IValue& b) -> IValue {
              check_shift(whole(b));
              return whole(a) == 0 ? 0 : multiply(whole(a), power(2, whole(b)));
            },
            2}},
          {"_operator.rshift",
           {[](const IValue& a, const IValue& b) -> IValue {
              check_shift(whole(b));
              return whole(a) >> std::min<int64_t>(whole(b), 63);
            },
            2}},
          {"_operator.eq", {applied<std::equal_to<>>, 2}},
          {"_operator.ne", {applied<std::not_equal_to<>>, 2}},
          {"_operator.lt", {applied<std::less<>>, 2}},
          {"_operator.le", {applied<std::less_equal<>>, 2}},
          {"_operator.gt", {applied<std::greater<>>, 2}},
          {"_operator.ge", {applied<std::greater_equal<>>, 2}},
          {"torch.sym_ite", {nullptr, 3}},
          {"torch.sym_max", {applied<decltype(kLarger)>, 2}},
          {"torch.sym_min", {applied<decltype(kSmaller)>, 2}},
          {"torch.sym_not",
           {[](const IValue& a, const IValue&) -> IValue {
              return real(a) == 0;
            },
            1}},
          {"torch.sym_float",
           {[](const IValue& a, const IValue&) -> IValue { return real(a); },
            1}},
          {"torch.sym_int", {rounded<std::trunc>, 1}},
          {"math.trunc", {rounded<std::trunc>, 1}},
          {"math.ceil", {rounded<std::ceil>, 1}},
          {"math.floor", {rounded<std::floor>, 1}},
          {"torch._sym_sqrt", {function<std::sqrt>, 1}},
          {"torch.sym_sqrt", {function<std::sqrt>, 1}},
          {"math.sqrt", {function<std::sqrt>, 1}},
      };
  const auto found = operations->find(target);
  if (found == operations->end()) return std::nullopt;
  return found->second;
}

c10::IValue result_of(const Operation& operation,
                      const std::vector<c10::IValue>& operands) {
  if (operation.compute) {
    return operation.compute(operands.front(), operands.back());
  }
  return operands.at(real(operands.at(0)) != 0 ? 1 : 2);
}

// ---- Operators that Python libraries define in Python, so that LibTorch lacks
// ---- them and programs have only their names

namespace {

constexpr char kNamespace[] = "transformers";
constexpr char kName[] = "grouped_mm_fallback";

// Calls `use` with the number, the begin and the end of each group that has
// rows. `ends`: [groups], on any device.
template <typename Use>
void for_each_group(const at::Tensor& ends, const Use& use) {
  if (ends.is_meta()) return;
  const at::Tensor host = ends.to(at::kCPU, at::kLong).contiguous();
  const int64_t* const end = host.const_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t k = 0; k < host.numel(); ++k) {
    if (end[k] == begin) continue;
    use(k, begin, end[k]);
    begin = end[k];
  }
}

class GroupedProduct : public torch::autograd::Function<GroupedProduct> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& ends) {
    context->save_for_backward({input, weight, ends});
    const at::Tensor output =
        at::zeros({input.size(0), weight.size(2)}, input.options());
    for_each_group(ends, [&](int64_t k, int64_t begin, int64_t end) {
      at::Tensor rows = output.slice(0, begin, end);
      at::mm_out(rows, input.slice(0, begin, end), weight[k]);
    });
    return output;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &grad = grads[0];
    at::Tensor of_input, of_weight;
    if (context->needs_input_grad(0)) of_input = at::zeros_like(input);
    if (context->needs_input_grad(1)) of_weight = at::zeros_like(weight);
    for_each_group(saved[2], [&](int64_t k, int64_t begin, int64_t end) {
      const at::Tensor own = grad.slice(0, begin, end);
      if (of_input.defined()) {
        at::Tensor rows = of_input.slice(0, begin, end);
        at::mm_out(rows, own, weight[k].t());
      }
      if (of_weight.defined()) {
        at::Tensor matrix = of_weight[k];
        at::mm_out(matrix, input.slice(0, begin, end).t(), own);
      }
    });
    return {of_input, of_weight, at::Tensor()};
  }
};

at::Tensor grouped_product(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& ends) {
  return GroupedProduct::apply(input, weight, ends);
}

// Registers the operator with LibTorch's dispatcher, unless other code has.
// Returns a library that lives until the process ends; null if the operator is
// known.
torch::Library* registered_operators() {
  const std::string name = std::string(kNamespace) + "::" + kName;
  if (c10::Dispatcher::singleton().findSchema({name, ""})) return nullptr;
  auto* const library = new torch::Library(torch::Library::FRAGMENT, kNamespace,
                                           std::nullopt, __FILE__, __LINE__);
  library->def(
      "grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) "
      "-> Tensor");
  library->impl(kName,
                torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                TORCH_FN(grouped_product)));
  return library;
}

// ---- Operators and their schemas

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
  [[maybe_unused]] static const torch::Library* const library =
      registered_operators();
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

void squeeze_fixed_sizes(Node& node, const std::vector<Extent>& sizes) {
  const std::string name = operator_name(node);
  if (name != "aten.squeeze" && name != "aten.squeeze_") return;
  const auto rank = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> wanted(rank);
  std::iota(wanted.begin(), wanted.end(), 0);
  if (node.arguments.size() > 1) {
    const IValue& dims = node.arguments[1].constant;
    if (!dims.isInt() && !dims.isIntList()) return;
    wanted = dims.isInt() ? std::vector{dims.toInt()} : dims.toIntVector();
  }
  std::vector<int64_t> fixed;
  for (int64_t d : wanted) {
    if (d < 0) d += rank;
    if (d < 0 || d >= rank) return;  // LibTorch reports it
    if (sizes[d].symbol == Extent::kNone) fixed.push_back(d);
  }
  if (fixed.size() == wanted.size()) return;
  node.target = "torch.ops." + name + ".dims";
  node.op = find_operator(node.target);
  node.arguments.resize(1);
  node.arguments.emplace_back().constant = fixed;
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
    if (std::ranges::any_of(own, [&](const std::string& set) {
          return std::ranges::find(sets, set) != sets.end();
        })) {
      places.push_back(k);
    }
  }
  return places;
}

namespace {

// The operators of LibTorch that may return their first tensor or their first
// list of tensors, or views of it, without a word of that in their schemas.
constexpr std::string_view kUndeclaredAliases[] = {"alpha_dropout",
                                                   "atleast_1d",
                                                   "atleast_2d",
                                                   "atleast_3d",
                                                   "broadcast_tensors",
                                                   "cartesian_prod",
                                                   "conj_physical",
                                                   "data",
                                                   "dequantize",
                                                   "dropout",
                                                   "einsum",
                                                   "feature_alpha_dropout",
                                                   "feature_dropout",
                                                   "flatten_dense_tensors",
                                                   "lift",
                                                   "meshgrid",
                                                   "sum_to_size",
                                                   "to_dense",
                                                   "type_as",
                                                   "unflatten_dense_tensors",
                                                   "unsafe_chunk",
                                                   "unsafe_split",
                                                   "unsafe_split_with_sizes",
                                                   "_unsafe_view"};

// Returns whether `node` has a dropout rate that is not 0, and its training
// flag is not false.
bool drops(const Node& node) {
  const auto rate = node.op->schema().argumentIndexWithName("p");
  if (!rate || is_switched_off(node)) return false;
  const c10::IValue& constant = node.arguments[*rate].constant;
  return !constant.isDouble() || constant.toDouble() != 0;
}

}  // namespace

std::optional<std::size_t> undeclared_alias(const Node& node) {
  std::string_view name = node.op->operator_name().name;
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) return std::nullopt;
  name.remove_prefix(kAten.size());
  if (std::ranges::find(kUndeclaredAliases, name) ==
          std::end(kUndeclaredAliases) ||
      drops(node)) {
    return std::nullopt;
  }
  const auto found =
      std::ranges::find_if(node.arguments, [](const Argument& each) {
        return each.kind == Argument::Kind::kValue ||
               each.kind == Argument::Kind::kTensors;
      });
  if (found == node.arguments.end()) return std::nullopt;
  // One tensor of several, such as the operands of einsum, is new.
  const bool joins = found->elements.size() > 1 &&
                     node.op->schema().returns()[0].type()->kind() ==
                         c10::TypeKind::TensorType;
  if (joins) return std::nullopt;
  return found - node.arguments.begin();
}

// ---- Targets that run graphs, and those that cannot run

namespace {

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
constexpr std::string_view kTransforms = "torch._functorch.predispatch.";

// How operators that only Python can run begin after "torch.ops.", and what to
// do about them.
struct Advice {
  std::string_view name, text;
};

constexpr Advice kAdvice[] = {
    {"higher_order.associative_scan",
     "use cumsum, cumprod or logcumsumexp, or write a Python loop, which the "
     "export unrolls (transformers: use_associative_scan=False)"},
    {"higher_order.flex_attention",
     "use scaled_dot_product_attention (transformers: "
     "attn_implementation=\"sdpa\")"},
    {"higher_order.triton_kernel_wrapper",
     "use an implementation without Triton"},
    {"higher_order.", "export the model without it"},
    {"torch_nn._linear_cross_entropy",
     "call linear_cross_entropy without options"},
    {"torch_attn._varlen_attn", "use scaled_dot_product_attention"},
};

}  // namespace

bool is_higher_order(const std::string& target) {
  return target.starts_with(kHigherOrder);
}

std::string_view higher_order_name(const std::string& target) {
  return std::string_view(target).substr(kHigherOrder.size());
}

std::optional<Control> find_control(const std::string& target) {
  const std::string_view name = higher_order_name(target);
  if (name == "cond") return Control::kCond;
  if (name == "while_loop") return Control::kWhile;
  if (name == "scan") return Control::kScan;
  if (name == "map_impl") return Control::kMap;
  return std::nullopt;
}

bool is_transform(const std::string& target) {
  return target.starts_with(kTransforms);
}

std::string advice_on(const std::string& target) {
  if (is_transform(target)) {
    return "is a step of torch.vmap or torch.func.jvp, which only Python can "
           "run; write the function for all rows at once";
  }
  if (!is_operator(target)) return "is no operation that gpipe knows";
  const std::string_view name =
      std::string_view(target).substr(kOperators.size());
  for (const Advice& each : kAdvice) {
    if (!name.starts_with(each.name)) continue;
    return std::string(
               is_higher_order(target)
                   ? "is a higher-order operator, which is not supported"
                   : "is an operator that only Python has")
        .append("; ")
        .append(each.text);
  }
  return "is an operator that LibTorch does not have; load the library that "
         "registers it (programs: --operators=LIBRARY.so), or export the model "
         "without it";
}

}  // namespace gpipe::exported
