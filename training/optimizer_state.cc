#include "training/optimizer_state.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "gpipe/base/text.h"
#include "training/files/parameter_rows.h"

namespace gpipe {
namespace {

namespace optim = torch::optim;
using Names = torch::OrderedDict<std::string, at::Tensor>;

// ---- The optimizers whose state can be saved, and the members of their state

// Calls visit(name, member) for each member that `of` has: the options of an
// optimizer, or the state of a parameter. beta1 and beta2 are those of betas().
template <typename Of, typename Visit>
void visit_members(Of& of, const Visit& visit) {
#define GPIPE_VISIT(name) \
  if constexpr (requires { of.name(); }) visit(#name, of.name());
  // Options
  GPIPE_VISIT(lr)
  GPIPE_VISIT(momentum)
  GPIPE_VISIT(dampening)
  GPIPE_VISIT(weight_decay)
  GPIPE_VISIT(nesterov)
  if constexpr (requires { of.betas(); }) {
    visit("beta1", std::get<0>(of.betas()));
    visit("beta2", std::get<1>(of.betas()));
  }
  GPIPE_VISIT(eps)
  GPIPE_VISIT(amsgrad)
  GPIPE_VISIT(alpha)
  GPIPE_VISIT(centered)
  GPIPE_VISIT(lr_decay)
  GPIPE_VISIT(initial_accumulator_value)
  // State
  GPIPE_VISIT(step)
  GPIPE_VISIT(momentum_buffer)
  GPIPE_VISIT(exp_avg)
  GPIPE_VISIT(exp_avg_sq)
  GPIPE_VISIT(max_exp_avg_sq)
  GPIPE_VISIT(square_avg)
  GPIPE_VISIT(grad_avg)
  GPIPE_VISIT(sum)
#undef GPIPE_VISIT
}

template <typename OptionsType, typename StateType>
struct Kind {
  using Options = OptionsType;
  using State = StateType;
  const char* name;
};

// Calls body(Kind) with the kind of `optimizer`.
template <typename Body>
void with_kind(const torch::optim::Optimizer& optimizer, const Body& body) {
  // Not dynamic_cast: a derived class may have more state.
  const std::type_info& type = typeid(optimizer);
#define GPIPE_KIND(name)                                                    \
  if (type == typeid(torch::optim::name)) {                                 \
    body(Kind<torch::optim::name##Options, torch::optim::name##ParamState>{ \
        #name});                                                            \
    return;                                                                 \
  }
  GPIPE_KIND(SGD)
  GPIPE_KIND(Adam)
  GPIPE_KIND(AdamW)
  GPIPE_KIND(RMSprop)
  GPIPE_KIND(Adagrad)
#undef GPIPE_KIND
  TORCH_CHECK_TYPE(false, "the state of a ", c10::demangle(type.name()),
                   " cannot be saved or loaded; only torch::optim::SGD, "
                   "Adam, AdamW, RMSprop and Adagrad are supported");
}

// ---- Members to numbers and tensors, and back

struct Collect {
  OptimizerState::Options& options;
  void operator()(const char* name, double& value) const {
    options[name] = value;
  }
  void operator()(const char* name, bool& value) const {
    options[name] = value ? 1 : 0;
  }
};

struct CollectState {
  OptimizerState::Parameter& parameter;
  void operator()(const char* name, int64_t& value) const {
    parameter.counts[name] = value;
  }
  void operator()(const char* name, at::Tensor& value) const {
    if (value.defined()) parameter.tensors[name] = value.detach();
  }
};

// Sets the members that `options` has, and leaves others unchanged.
struct Restore {
  const OptimizerState::Options& options;
  void operator()(const char* name, double& value) const {
    const auto found = options.find(name);
    if (found != options.end()) value = found->second;
  }
  void operator()(const char* name, bool& value) const {
    const auto found = options.find(name);
    if (found != options.end()) value = found->second != 0;
  }
};

struct RestoreState {
  const OptimizerState::Parameter& parameter;
  const at::Tensor& like;  // the optimizer's tensor
  const internal::NamedRows& rows;
  bool is_whole;  // `parameter` has all rows, `like` only `rows`
  void operator()(const char* name, int64_t& value) const {
    const auto found = parameter.counts.find(name);
    if (found != parameter.counts.end()) value = found->second;
  }
  void operator()(const char* name, at::Tensor& value) const {
    const auto found = parameter.tensors.find(name);
    if (found == parameter.tensors.end()) {
      value = at::Tensor();
      return;
    }
    at::Tensor from = found->second;
    const bool is_dense = from.layout() == at::kStrided;
    if (is_whole) {
      const int64_t count = rows.end - rows.first;
      from = is_dense ? from.narrow(0, rows.first, count)
                      : from.narrow_copy(0, rows.first, count);
    }
    // As in Python, a parameter that has become wider has a wider state. A
    // state that is wider than its parameter stays: the momentum of SGD has the
    // dtype of the gradients.
    const bool stays =
        !like.is_floating_point() || !from.is_floating_point() ||
        c10::promoteTypes(like.scalar_type(), from.scalar_type()) ==
            from.scalar_type();
    const auto options =
        like.options()
            .dtype(stays ? from.scalar_type() : like.scalar_type())
            .layout(from.layout())
            .requires_grad(false);
    if (!is_dense) {  // the momentum of sparse gradients
      value = from.to(options, /*non_blocking=*/false, /*copy=*/true);
      return;
    }
    value = at::empty_like(like.detach(), options);
    value.copy_(from);
  }
};

struct ChangeState {
  const at::Tensor& parameter;
  const std::function<void(const at::Tensor&, at::Tensor&)>& change;
  void operator()(const char* /*name*/, int64_t& /*value*/) const {}
  void operator()(const char* /*name*/, at::Tensor& value) const {
    if (value.defined()) change(parameter, value);
  }
};

template <typename Options>
Options options_of(const optim::OptimizerParamGroup& group,
                   const optim::Optimizer& optimizer) {
  return static_cast<const Options&>(
      group.has_options() ? group.options() : optimizer.defaults());
}

// ---- Error texts

constexpr std::size_t kListed = 20;

void list(std::ostream& to, const char* title,
          const std::vector<std::string>& items) {
  if (items.empty()) return;
  to << "\n"
     << items.size() << " " << title << ":" << first_lines(items, kListed);
}

std::string name_text(const std::string& name) { return "'" + name + "'"; }

// "parameter 3 of group 0, [4, 3]".
std::string place(std::size_t group, std::size_t k, const at::Tensor& tensor) {
  std::ostringstream text;
  text << "parameter " << k << " of group " << group << ", " << tensor.sizes();
  return std::move(text).str();
}

constexpr char kNameless[] =
    "without a name (give module->named_parameters() of the module whose "
    "parameters the optimizer has)";

// The saved state of one tensor of an optimizer.
struct Saved {
  const OptimizerState::Parameter* from = nullptr;
  internal::NamedRows rows;
  bool is_whole = false;  // `from` has all rows, the tensor only some
};

// The saved state of a group of parameters.
struct SavedGroup {
  std::vector<Saved> parameters;
  const OptimizerState::Options* options = nullptr;  // null: no parameters
};

// Returns the state of some rows: theirs, or else that of the whole parameter.
// Adds the names under which it may be to `known`.
Saved saved_of(const OptimizerState& state, internal::NamedRows rows,
               std::set<std::string>& known) {
  Saved saved;
  for (const std::string& each : rows.names) {
    for (const std::string& name : {rows.key(each), each}) {
      known.insert(name);
      const auto at = state.parameters.find(name);
      if (saved.from || at == state.parameters.end()) continue;
      saved.from = &at->second;
      saved.is_whole = !rows.is_whole && name == each;
    }
  }
  saved.rows = std::move(rows);
  return saved;
}

// Returns the part of `state` for each group of an optimizer. Throws
// c10::ValueError, with all differences, if the state does not fit.
std::vector<SavedGroup> find_saved(
    const std::vector<optim::OptimizerParamGroup>& groups,
    const OptimizerState& state, const Names& names) {
  const internal::ParameterNames names_of(names);
  // An optimizer of shards may have none of the rows of a parameter, or no
  // tensor at all.
  bool has_shards = std::ranges::all_of(
      groups, [](const auto& group) { return group.params().empty(); });
  std::vector<std::string> nameless, missing, unexpected, misfits, apart;
  std::set<std::string> known;
  std::vector<SavedGroup> found(groups.size());

  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::string first;  // the parameter that the options of the group are from
    for (std::size_t k = 0; k < groups[g].params().size(); ++k) {
      const at::Tensor& tensor = groups[g].params()[k];
      auto its = names_of.find(tensor);
      if (!its) {
        nameless.push_back(place(g, k, tensor));
        continue;
      }
      has_shards = has_shards || its->is_shard;
      const std::string name = its->names.front();
      const Saved saved = saved_of(state, *std::move(its), known);
      const OptimizerState::Parameter* const from = saved.from;
      if (!from) {
        missing.push_back(name_text(name));
        continue;
      }
      const at::IntArrayRef sizes = saved.rows.is_whole || saved.is_whole
                                        ? saved.rows.parameter.sizes()
                                        : tensor.sizes();
      found[g].parameters.push_back(saved);
      for (const auto& [what, value] : from->tensors) {
        if (value.sizes() == sizes) continue;
        std::ostringstream text;
        text << what << " of " << name_text(name) << " is " << value.sizes()
             << " in the state, but the parameter is " << sizes;
        misfits.push_back(std::move(text).str());
      }
      TORCH_CHECK_VALUE(from->group < state.groups.size(), name_text(name),
                        " is of group ", from->group,
                        " in the state, which has ", state.groups.size(),
                        " groups");
      const OptimizerState::Options& its_options = state.groups[from->group];
      if (!found[g].options) {
        found[g].options = &its_options;
        first = name;
      } else if (*found[g].options != its_options) {
        apart.push_back("group " + std::to_string(g) + ": " + name_text(first) +
                        " and " + name_text(name));
      }
    }
  }
  for (const auto& [name, parameter] : state.parameters) {
    if (known.count(name)) continue;
    if (has_shards && names.contains(internal::parameter_of(name))) continue;
    unexpected.push_back(name_text(name));
  }

  std::ostringstream text;
  list(text, kNameless, nameless);
  list(text, "missing (in the optimizer, not in the state)", missing);
  list(text, "unexpected (in the state, not in the optimizer)", unexpected);
  list(text, "with another shape", misfits);
  list(text, "in one group with different saved options", apart);
  TORCH_CHECK_VALUE(text.str().empty(),
                    "the state does not fit the optimizer:", text.str());
  return found;
}

}  // namespace

OptimizerState optimizer_state(const optim::Optimizer& optimizer,
                               const Names& names) {
  OptimizerState result;
  with_kind(optimizer, [&](auto kind) {
    using Options = typename decltype(kind)::Options;
    using State = typename decltype(kind)::State;
    result.type = kind.name;
    const internal::ParameterNames names_of(names);
    std::vector<std::string> nameless;
    const auto& groups = optimizer.param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      Options options = options_of<Options>(groups[g], optimizer);
      visit_members(options, Collect{result.groups.emplace_back()});
      for (std::size_t k = 0; k < groups[g].params().size(); ++k) {
        const at::Tensor& tensor = groups[g].params()[k];
        const auto rows = names_of.find(tensor);
        if (!rows) {
          nameless.push_back(place(g, k, tensor));
          continue;
        }
        OptimizerState::Parameter parameter;
        parameter.group = g;
        const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
        if (found != optimizer.state().end()) {
          State state = static_cast<const State&>(*found->second);
          visit_members(state, CollectState{parameter});
        }
        if (rows->is_shard && rows->is_whole) {
          for (auto& each : parameter.tensors) {
            each.second = each.second.view(rows->parameter.sizes());
          }
        }
        for (const std::string& each : rows->names) {
          TORCH_CHECK_VALUE(
              !rows->is_whole || !internal::parse_shard_name(each),
              "the optimizer's state cannot be saved: the parameter name '",
              each, "' has the form of rows of another parameter; rename it");
          result.parameters[rows->key(each)] = parameter;
        }
      }
    }
    std::ostringstream text;
    list(text, kNameless, nameless);
    TORCH_CHECK_VALUE(nameless.empty(),
                      "the optimizer's state cannot be saved:", text.str());
  });
  return result;
}

namespace internal {

void for_each_state_tensor(
    optim::Optimizer& optimizer,
    const std::function<void(const at::Tensor& parameter, at::Tensor& tensor)>&
        change) {
  with_kind(optimizer, [&](auto kind) {
    using State = typename decltype(kind)::State;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto found =
            optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer.state().end()) continue;
        visit_members(static_cast<State&>(*found->second),
                      ChangeState{parameter, change});
      }
    }
  });
}

}  // namespace internal

void load_optimizer_state(optim::Optimizer& optimizer,
                          const OptimizerState& state, const Names& names) {
  with_kind(optimizer, [&](auto kind) {
    using Options = typename decltype(kind)::Options;
    using State = typename decltype(kind)::State;
    TORCH_CHECK_VALUE(state.type == kind.name, "the state is that of ",
                      state.type, ", but the optimizer is ", kind.name);

    auto& groups = optimizer.param_groups();
    const std::vector<SavedGroup> found = find_saved(groups, state, names);
    // Before anything changes, since a copy may throw. Null: no state.
    std::map<void*, std::unique_ptr<State>> states;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t k = 0; k < groups[g].params().size(); ++k) {
        const at::Tensor& tensor = groups[g].params()[k];
        const Saved& saved = found[g].parameters[k];
        const OptimizerState::Parameter& from = *saved.from;
        auto& restored = states[tensor.unsafeGetTensorImpl()];
        if (from.tensors.empty() && from.counts.empty()) continue;
        restored = std::make_unique<State>();
        visit_members(*restored,
                      RestoreState{from, tensor, saved.rows, saved.is_whole});
      }
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!found[g].options) continue;
      Options restored = options_of<Options>(groups[g], optimizer);
      visit_members(restored, Restore{*found[g].options});
      groups[g].set_options(std::make_unique<Options>(restored));
    }
    for (auto& [key, restored] : states) {
      if (restored) {
        optimizer.state()[key] = std::move(restored);
      } else {
        optimizer.state().erase(key);
      }
    }
  });
}

}  // namespace gpipe
