// The optimizers of torch::optim whose state can be saved, and the members that
// make up their state.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <typeinfo>

namespace gpipe::internal {

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

}  // namespace gpipe::internal
