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

// visit_members(of, visit) calls visit(name, member) for each member of an
// optimizer's options or of a parameter's state.

template <typename Visit>
void visit_members(torch::optim::SGDOptions& of, const Visit& visit) {
  visit("lr", of.lr());
  visit("momentum", of.momentum());
  visit("dampening", of.dampening());
  visit("weight_decay", of.weight_decay());
  visit("nesterov", of.nesterov());
}

template <typename Visit>
void visit_members(torch::optim::SGDParamState& of, const Visit& visit) {
  visit("momentum_buffer", of.momentum_buffer());
}

template <typename Options, typename Visit>
void visit_adam(Options& of, const Visit& visit) {
  visit("lr", of.lr());
  visit("beta1", std::get<0>(of.betas()));
  visit("beta2", std::get<1>(of.betas()));
  visit("eps", of.eps());
  visit("weight_decay", of.weight_decay());
  visit("amsgrad", of.amsgrad());
}

template <typename State, typename Visit>
void visit_adam_state(State& of, const Visit& visit) {
  visit("step", of.step());
  visit("exp_avg", of.exp_avg());
  visit("exp_avg_sq", of.exp_avg_sq());
  visit("max_exp_avg_sq", of.max_exp_avg_sq());
}

template <typename Visit>
void visit_members(torch::optim::AdamOptions& of, const Visit& visit) {
  visit_adam(of, visit);
}

template <typename Visit>
void visit_members(torch::optim::AdamParamState& of, const Visit& visit) {
  visit_adam_state(of, visit);
}

template <typename Visit>
void visit_members(torch::optim::AdamWOptions& of, const Visit& visit) {
  visit_adam(of, visit);
}

template <typename Visit>
void visit_members(torch::optim::AdamWParamState& of, const Visit& visit) {
  visit_adam_state(of, visit);
}

template <typename Visit>
void visit_members(torch::optim::RMSpropOptions& of, const Visit& visit) {
  visit("lr", of.lr());
  visit("alpha", of.alpha());
  visit("eps", of.eps());
  visit("weight_decay", of.weight_decay());
  visit("momentum", of.momentum());
  visit("centered", of.centered());
}

template <typename Visit>
void visit_members(torch::optim::RMSpropParamState& of, const Visit& visit) {
  visit("step", of.step());
  visit("square_avg", of.square_avg());
  visit("momentum_buffer", of.momentum_buffer());
  visit("grad_avg", of.grad_avg());
}

template <typename Visit>
void visit_members(torch::optim::AdagradOptions& of, const Visit& visit) {
  visit("lr", of.lr());
  visit("lr_decay", of.lr_decay());
  visit("weight_decay", of.weight_decay());
  visit("initial_accumulator_value", of.initial_accumulator_value());
  visit("eps", of.eps());
}

template <typename Visit>
void visit_members(torch::optim::AdagradParamState& of, const Visit& visit) {
  visit("step", of.step());
  visit("sum", of.sum());
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
  if (type == typeid(torch::optim::SGD)) {
    body(Kind<torch::optim::SGDOptions, torch::optim::SGDParamState>{"SGD"});
  } else if (type == typeid(torch::optim::Adam)) {
    body(Kind<torch::optim::AdamOptions, torch::optim::AdamParamState>{"Adam"});
  } else if (type == typeid(torch::optim::AdamW)) {
    body(Kind<torch::optim::AdamWOptions, torch::optim::AdamWParamState>{
        "AdamW"});
  } else if (type == typeid(torch::optim::RMSprop)) {
    body(Kind<torch::optim::RMSpropOptions, torch::optim::RMSpropParamState>{
        "RMSprop"});
  } else if (type == typeid(torch::optim::Adagrad)) {
    body(Kind<torch::optim::AdagradOptions, torch::optim::AdagradParamState>{
        "Adagrad"});
  } else {
    TORCH_CHECK_TYPE(false, "the state of a ", c10::demangle(type.name()),
                     " cannot be saved or loaded; only torch::optim::SGD, "
                     "Adam, AdamW, RMSprop and Adagrad are supported");
  }
}

}  // namespace gpipe::internal
