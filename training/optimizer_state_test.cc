#include "training/optimizer_state.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/testing/files.h"
#include "training/files/step_folder.h"

namespace gpipe {
namespace {

namespace optim = torch::optim;
using testing::bit_equal;
using testing::error_of;
using testing::value_error_of;
using torch::nn::Linear;
using torch::nn::Sequential;

Sequential small_model() {
  at::manual_seed(1);
  return Sequential(Linear(3, 4), Linear(4, 4), Linear(4, 2));
}

void train(Sequential& model, optim::Optimizer& optimizer, int first,
           int last) {
  for (int step = first; step < last; ++step) {
    at::manual_seed(100 + step);
    optimizer.zero_grad();
    model->forward(at::randn({5, 3})).pow(2).mean().backward();
    optimizer.step();
  }
}

bool parameters_equal(const Sequential& a, const Sequential& b) {
  const auto x = a->parameters(), y = b->parameters();
  for (std::size_t k = 0; k < x.size(); ++k) {
    if (!bit_equal(x[k], y[k])) return false;
  }
  return x.size() == y.size();
}

void copy_values(const Sequential& from, Sequential& to) {
  load_state_dict(*to, state_dict(*from));
}

using Parameters = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(Parameters)>;

std::vector<std::pair<std::string, Make>> optimizers() {
  return {
      {"SGD",
       [](Parameters p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
       }},
      {"SGD",  // without momentum, so it has no state
       [](Parameters p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions(0.1).weight_decay(0.01));
       }},
      {"Adam",
       [](Parameters p) {
         return std::make_unique<optim::Adam>(
             p, optim::AdamOptions(0.01).betas({0.8, 0.99}));
       }},
      {"AdamW",
       [](Parameters p) {
         return std::make_unique<optim::AdamW>(
             p, optim::AdamWOptions(0.01).amsgrad(true));
       }},
      {"RMSprop",
       [](Parameters p) {
         return std::make_unique<optim::RMSprop>(
             p, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
       }},
      {"Adagrad",
       [](Parameters p) {
         return std::make_unique<optim::Adagrad>(
             p, optim::AdagradOptions(0.1).lr_decay(0.1));
       }},
  };
}

OptimizerState copy_of(OptimizerState state) {
  for (auto& [name, parameter] : state.parameters) {
    for (auto& [what, tensor] : parameter.tensors) tensor = tensor.clone();
  }
  return state;
}

TEST(OptimizerStateTest, AParameterOfAnotherDtypeHasAStateOfItsOwn) {
  Sequential model = small_model();
  model->to(at::kBFloat16);
  optim::Adam before(model->parameters(), optim::AdamOptions(0.01));
  at::manual_seed(1);
  model->forward(at::randn({5, 3}, at::kBFloat16)).sum().backward();
  before.step();
  const OptimizerState saved =
      copy_of(optimizer_state(before, model->named_parameters()));
  model->to(at::kFloat);
  optim::Adam after(model->parameters(), optim::AdamOptions(0.01));
  load_optimizer_state(after, saved, model->named_parameters());
  const OptimizerState loaded =
      optimizer_state(after, model->named_parameters());
  for (const auto& [name, parameter] : saved.parameters) {
    for (const auto& [what, tensor] : parameter.tensors) {
      EXPECT_TRUE(bit_equal(loaded.parameters.at(name).tensors.at(what),
                            tensor.to(at::kFloat)))
          << what << " of " << name;
    }
  }
  train(model, after, 0, 2);
}

TEST(OptimizerStateTest, TheMomentumOfWiderGradientsKeepsItsBits) {
  const auto make_model = [] {
    at::manual_seed(1);
    Sequential model = small_model();
    model->to(at::kBFloat16);
    for (at::Tensor& each : model->parameters())
      each.set_grad_dtype(at::kFloat);
    return model;
  };
  const auto steps = [](Sequential& model, optim::SGD& optimizer, int count) {
    for (int k = 0; k < count; ++k) {
      optimizer.zero_grad();
      for (const at::Tensor& each : model->parameters()) {
        each.mul(k + 1 / 3.).sum().backward();
      }
      optimizer.step();
    }
  };
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  Sequential wanted = make_model(), model = make_model();
  optim::SGD straight(wanted->parameters(), options);
  steps(wanted, straight, 2);
  steps(wanted, straight, 2);
  OptimizerState saved;
  {
    optim::SGD before(model->parameters(), options);
    steps(model, before, 2);
    saved = copy_of(optimizer_state(before, model->named_parameters()));
  }
  optim::SGD after(model->parameters(), options);
  load_optimizer_state(after, saved, model->named_parameters());
  const OptimizerState loaded =
      optimizer_state(after, model->named_parameters());
  for (const auto& [name, parameter] : saved.parameters) {
    EXPECT_TRUE(
        bit_equal(loaded.parameters.at(name).tensors.at("momentum_buffer"),
                  parameter.tensors.at("momentum_buffer")))
        << name;
  }
  steps(model, after, 2);
  EXPECT_TRUE(parameters_equal(model, wanted));
}

TEST(OptimizerStateTest, TheMomentumOfSparseGradientsIsLoaded) {
  const auto make_table = [] {
    at::manual_seed(1);
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  };
  const auto steps = [](torch::nn::Embedding& table, optim::SGD& optimizer,
                        int count) {
    for (int k = 0; k < count; ++k) {
      optimizer.zero_grad();
      table(at::full({2}, k, at::kLong)).pow(2).sum().backward();
      optimizer.step();
    }
  };
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  torch::nn::Embedding table = make_table();
  optim::SGD optimizer(table->parameters(), options);
  steps(table, optimizer, 2);
  torch::nn::Embedding other = make_table();
  optim::SGD second(other->parameters(), options);
  load_state_dict(*other, state_dict(*table));
  load_optimizer_state(second,
                       optimizer_state(optimizer, table->named_parameters()),
                       other->named_parameters());
  steps(table, optimizer, 3);
  steps(other, second, 3);
  EXPECT_TRUE(bit_equal(other->weight, table->weight));
}

TEST(OptimizerStateTest, AnotherOptimizerGoesOnWithTheSameBits) {
  for (const auto& [type, make] : optimizers()) {
    SCOPED_TRACE(type);
    Sequential model = small_model();
    const auto optimizer = make(model->parameters());
    train(model, *optimizer, 0, 3);
    const OptimizerState state =
        copy_of(optimizer_state(*optimizer, model->named_parameters()));
    EXPECT_EQ(state.type, type);

    // The second optimizer has other values, reversed parameters, and a state.
    Sequential again = small_model();
    Parameters reversed = again->parameters();
    std::reverse(reversed.begin(), reversed.end());
    const auto resumed = make(reversed);
    train(again, *resumed, 7, 9);
    copy_values(model, again);
    resumed->param_groups()[0].options().set_lr(7);
    load_optimizer_state(*resumed, state, again->named_parameters());

    train(model, *optimizer, 3, 6);
    train(again, *resumed, 3, 6);
    EXPECT_TRUE(parameters_equal(model, again));
  }
}

// The options of a run, and an optimizer of the same type with the defaults.
TEST(OptimizerStateTest, EveryOptionComesFromTheState) {
  const std::vector<std::pair<Make, Make>> cases = {
      {[](Parameters p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
       },
       [](Parameters p) {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions(1));
       }},
      {[](Parameters p) {
         return std::make_unique<optim::SGD>(
             p,
             optim::SGDOptions(0.1).momentum(0.9).dampening(0.25).weight_decay(
                 0.01));
       },
       [](Parameters p) {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions(1));
       }},
      {[](Parameters p) {
         return std::make_unique<optim::Adam>(p, optim::AdamOptions(0.01)
                                                     .betas({0.8, 0.99})
                                                     .eps(1e-3)
                                                     .weight_decay(0.01)
                                                     .amsgrad(true));
       },
       [](Parameters p) { return std::make_unique<optim::Adam>(p); }},
      {[](Parameters p) {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.01)
                                                      .betas({0.8, 0.99})
                                                      .eps(1e-3)
                                                      .weight_decay(0.1)
                                                      .amsgrad(true));
       },
       [](Parameters p) { return std::make_unique<optim::AdamW>(p); }},
      {[](Parameters p) {
         return std::make_unique<optim::RMSprop>(p, optim::RMSpropOptions(0.01)
                                                        .alpha(0.9)
                                                        .eps(1e-3)
                                                        .weight_decay(0.01)
                                                        .momentum(0.5)
                                                        .centered(true));
       },
       [](Parameters p) { return std::make_unique<optim::RMSprop>(p); }},
      {[](Parameters p) {
         return std::make_unique<optim::Adagrad>(
             p, optim::AdagradOptions(0.1).lr_decay(0.1).eps(1e-3).weight_decay(
                    0.01));
       },
       [](Parameters p) { return std::make_unique<optim::Adagrad>(p); }},
  };
  for (std::size_t k = 0; k < cases.size(); ++k) {
    SCOPED_TRACE(k);
    Sequential model = small_model();
    const auto optimizer = cases[k].first(model->parameters());
    train(model, *optimizer, 0, 3);
    const OptimizerState state =
        copy_of(optimizer_state(*optimizer, model->named_parameters()));
    Sequential again = small_model();
    copy_values(model, again);
    const auto resumed = cases[k].second(again->parameters());
    load_optimizer_state(*resumed, state, again->named_parameters());
    train(model, *optimizer, 3, 6);
    train(again, *resumed, 3, 6);
    EXPECT_TRUE(parameters_equal(model, again));
  }
}

TEST(OptimizerStateTest, TwoOptimizersTakeItsParts) {
  for (const auto& [type, make] : optimizers()) {
    SCOPED_TRACE(type);
    Sequential model = small_model();
    const auto optimizer = make(model->parameters());
    train(model, *optimizer, 0, 3);
    const OptimizerState state =
        copy_of(optimizer_state(*optimizer, model->named_parameters()));

    Sequential again = small_model();
    copy_values(model, again);
    std::vector<std::unique_ptr<optim::Optimizer>> parts;
    for (const bool first : {true, false}) {
      Parameters parameters;
      OptimizerState part = state;
      for (const auto& item : again->named_parameters()) {
        if ((item.key()[0] == '0') == first) {
          parameters.push_back(item.value());
        } else {
          part.parameters.erase(item.key());
        }
      }
      parts.push_back(make(parameters));
      load_optimizer_state(*parts.back(), part, again->named_parameters());
    }
    train(model, *optimizer, 3, 4);
    at::manual_seed(103);
    again->forward(at::randn({5, 3})).pow(2).mean().backward();
    for (const auto& part : parts) part->step();
    EXPECT_TRUE(parameters_equal(model, again));
  }
}

// Returns the shards of the parameters that replica `own` of two owns: rows of
// each, and a parameter of one row as a whole.
Parameters shards_of(const Parameters& parameters, int64_t own) {
  Parameters shards;
  for (const at::Tensor& each : parameters) {
    const int64_t rows = each.size(0), middle = rows / 2;
    const at::Tensor view =
        own == 0 ? each.detach().narrow(0, 0, middle)
                 : each.detach().narrow(0, middle, rows - middle);
    if (view.size(0) == 0) continue;
    shards.push_back(view.alias().detach().requires_grad_());
  }
  return shards;
}

void step_shards(const Parameters& parameters, optim::Optimizer& optimizer,
                 int64_t own, const Parameters& shards) {
  std::size_t next = 0;
  for (const at::Tensor& each : parameters) {
    const int64_t rows = each.size(0), middle = rows / 2;
    const at::Tensor grad = own == 0
                                ? each.grad().narrow(0, 0, middle)
                                : each.grad().narrow(0, middle, rows - middle);
    if (grad.size(0) > 0) at::Tensor(shards[next++]).mutable_grad() = grad;
  }
  optimizer.step();
}

TEST(OptimizerStateTest, RowsOfParametersGoOnFromAWholeState) {
  for (const auto& [type, make] : optimizers()) {
    SCOPED_TRACE(type);
    Sequential whole = small_model();
    const auto optimizer = make(whole->parameters());
    train(whole, *optimizer, 0, 3);
    const OptimizerState state =
        copy_of(optimizer_state(*optimizer, whole->named_parameters()));

    // Two replicas with shards of the same parameters go on from it.
    Sequential sharded = small_model();
    copy_values(whole, sharded);
    std::vector<Parameters> shards;
    std::vector<std::unique_ptr<optim::Optimizer>> replicas;
    for (const int64_t own : {0, 1}) {
      shards.push_back(shards_of(sharded->parameters(), own));
      replicas.push_back(make(shards.back()));
      load_optimizer_state(*replicas.back(), state,
                           sharded->named_parameters());
    }
    train(whole, *optimizer, 3, 4);
    for (std::size_t k = 0; k < sharded->parameters().size(); ++k) {
      sharded->parameters()[k].mutable_grad() = whole->parameters()[k].grad();
    }
    for (const int64_t own : {0, 1}) {
      step_shards(sharded->parameters(), *replicas[own], own, shards[own]);
    }
    EXPECT_TRUE(parameters_equal(whole, sharded));

    // And the state of both, joined, is that of the whole one.
    OptimizerState joined =
        optimizer_state(*replicas[0], sharded->named_parameters());
    const OptimizerState second =
        optimizer_state(*replicas[1], sharded->named_parameters());
    for (const auto& [name, parameter] : second.parameters) {
      EXPECT_TRUE(joined.parameters.emplace(name, parameter).second) << name;
    }
    internal::join_shards(joined);
    const OptimizerState expected =
        optimizer_state(*optimizer, whole->named_parameters());
    ASSERT_EQ(joined.parameters.size(), expected.parameters.size());
    for (const auto& [name, parameter] : expected.parameters) {
      const auto& actual = joined.parameters.at(name);
      EXPECT_EQ(actual.counts, parameter.counts) << name;
      ASSERT_EQ(actual.tensors.size(), parameter.tensors.size()) << name;
      for (const auto& [what, tensor] : parameter.tensors) {
        EXPECT_TRUE(at::equal(actual.tensors.at(what), tensor))
            << what << " of " << name;
      }
    }
  }
}

TEST(OptimizerStateTest, HasNumbersAndTensorsByName) {
  Sequential model(Linear(2, 1));
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.5));
  (*model)[0]->named_parameters()["weight"].mutable_grad() =
      at::full({1, 2}, 1.0);
  optimizer.step();
  const auto state = optimizer_state(optimizer, model->named_parameters());
  ASSERT_EQ(state.groups.size(), 1u);
  EXPECT_EQ(state.groups[0], (OptimizerState::Options{{"amsgrad", 0},
                                                      {"beta1", 0.9},
                                                      {"beta2", 0.999},
                                                      {"eps", 1e-8},
                                                      {"lr", 0.5},
                                                      {"weight_decay", 0.01}}));
  ASSERT_EQ(state.parameters.size(), 2u);
  const auto& weight = state.parameters.at("0.weight");
  EXPECT_EQ(weight.counts, (std::map<std::string, int64_t>{{"step", 1}}));
  ASSERT_EQ(weight.tensors.size(), 2u);
  EXPECT_EQ(weight.tensors.at("exp_avg").sizes(), (at::IntArrayRef{1, 2}));
  EXPECT_TRUE(weight.tensors.count("exp_avg_sq"));
  // This parameter has had no gradient.
  EXPECT_TRUE(state.parameters.at("0.bias").tensors.empty());
  EXPECT_TRUE(state.parameters.at("0.bias").counts.empty());
}

TEST(OptimizerStateTest, ForgetsWhatTheStateDoesNotRemember) {
  Sequential model = small_model();
  optim::SGD optimizer(model->parameters(),
                       optim::SGDOptions(0.1).momentum(0.9));
  const auto state =
      optimizer_state(optimizer, model->named_parameters());  // no step yet
  train(model, optimizer, 0, 1);
  EXPECT_EQ(optimizer.state().size(), 6u);
  load_optimizer_state(optimizer, state, model->named_parameters());
  EXPECT_EQ(optimizer.state().size(), 0u);
}

TEST(OptimizerStateTest, EachGroupGetsTheOptionsOfItsParameters) {
  Sequential model = small_model();
  const auto names = model->named_parameters();
  const Parameters biases = {names["0.bias"], names["1.bias"]};
  const Parameters weights = {names["0.weight"], names["1.weight"]};
  optim::SGD optimizer({optim::OptimizerParamGroup(
                            weights, std::make_unique<optim::SGDOptions>(
                                         optim::SGDOptions(0.5).momentum(1))),
                        optim::OptimizerParamGroup(
                            biases, std::make_unique<optim::SGDOptions>(0.25))},
                       optim::SGDOptions(1));
  const auto state = optimizer_state(optimizer, names);

  // The groups are in reverse order and split.
  optim::SGD other({optim::OptimizerParamGroup({biases[1]}),
                    optim::OptimizerParamGroup({weights[1]}),
                    optim::OptimizerParamGroup({biases[0]}),
                    optim::OptimizerParamGroup({weights[0]})},
                   optim::SGDOptions(3));
  load_optimizer_state(other, state, names);
  std::vector<double> rates;
  for (const auto& group : other.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  EXPECT_EQ(rates, (std::vector<double>{0.25, 0.5, 0.25, 0.5}));

  optim::SGD mixed({optim::OptimizerParamGroup({weights[0], biases[0]}),
                    optim::OptimizerParamGroup({weights[1], biases[1]})},
                   optim::SGDOptions(3));
  EXPECT_EQ(value_error_of([&] { load_optimizer_state(mixed, state, names); }),
            "the state does not fit the optimizer:\n"
            "2 in one group with different saved options:\n"
            "  group 0: '0.weight' and '0.bias'\n"
            "  group 1: '1.weight' and '1.bias'");
}

TEST(OptimizerStateTest, AParameterOfTwoNamesIsFoundUnderEither) {
  Linear shared(3, 3);
  const auto named = [&](const std::vector<std::string>& keys) {
    StateDict names;
    for (const auto& key : keys) names.insert(key, shared->weight);
    return names;
  };
  optim::SGD optimizer({shared->weight}, optim::SGDOptions(0.1).momentum(0.9));
  shared->weight.mutable_grad() = at::full({3, 3}, 1.0);
  optimizer.step();
  const auto state = optimizer_state(optimizer, named({"a", "b"}));
  EXPECT_EQ(state.parameters.size(), 2u);
  auto part = state;
  part.parameters.erase("a");
  load_optimizer_state(optimizer, part, named({"a", "b"}));
  EXPECT_EQ(optimizer.state().size(), 1u);
}

TEST(OptimizerStateTest, OneErrorForAllThatIsWrongAndNothingIsChanged) {
  Sequential model = small_model();
  optim::SGD optimizer(model->parameters(),
                       optim::SGDOptions(0.1).momentum(0.9));
  train(model, optimizer, 0, 1);
  auto state = copy_of(optimizer_state(optimizer, model->named_parameters()));
  state.groups[0]["lr"] = 5;
  state.parameters["extra"] = state.parameters["0.bias"];
  state.parameters.erase("0.bias");
  state.parameters.erase("1.bias");
  state.parameters["0.weight"].tensors["momentum_buffer"] = at::full({7}, 1.0);
  EXPECT_EQ(value_error_of([&] {
              load_optimizer_state(optimizer, state, model->named_parameters());
            }),
            "the state does not fit the optimizer:\n"
            "2 missing (in the optimizer, not in the state):\n"
            "  '0.bias'\n"
            "  '1.bias'\n"
            "1 unexpected (in the state, not in the optimizer):\n"
            "  'extra'\n"
            "1 with another shape:\n"
            "  momentum_buffer of '0.weight' is [7] in the state, but the "
            "parameter is [4, 3]");
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
}

// A replica with sharded optimizers may own no row of any parameter.
TEST(OptimizerStateTest, AnOptimizerWithoutTensorsTakesTheStateOfItsModule) {
  Sequential model = small_model();
  optim::SGD whole(model->parameters(), optim::SGDOptions(0.1).momentum(0.9));
  train(model, whole, 0, 1);
  const auto names = model->named_parameters();
  auto state = optimizer_state(whole, names);
  optim::SGD none(Parameters(), optim::SGDOptions(0.2));
  load_optimizer_state(none, state, names);
  EXPECT_TRUE(none.state().empty());
  EXPECT_EQ(none.param_groups()[0].options().get_lr(), 0.2);
  state.parameters["extra"] = state.parameters["0.bias"];
  EXPECT_EQ(value_error_of([&] { load_optimizer_state(none, state, names); }),
            "the state does not fit the optimizer:\n"
            "1 unexpected (in the state, not in the optimizer):\n"
            "  'extra'");
}

TEST(OptimizerStateTest, AnotherTypeIsAnError) {
  Sequential model = small_model();
  optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
  optim::Adam adam(model->parameters(), optim::AdamOptions(0.1));
  const auto names = model->named_parameters();
  EXPECT_EQ(value_error_of([&] {
              load_optimizer_state(adam, optimizer_state(sgd, names), names);
            }),
            "the state is that of SGD, but the optimizer is Adam");
  optim::LBFGS lbfgs(model->parameters(), optim::LBFGSOptions(1));
  EXPECT_THROW(optimizer_state(lbfgs, names), c10::TypeError);
  EXPECT_EQ(
      error_of([&] { optimizer_state(lbfgs, names); }),
      "the state of a torch::optim::LBFGS cannot be saved or loaded; only "
      "torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad are supported");
}

TEST(OptimizerStateTest, AGroupThatTheStateLacksIsAnError) {
  Sequential model = small_model();
  optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
  const auto names = model->named_parameters();
  OptimizerState state = optimizer_state(sgd, names);
  state.groups.clear();
  EXPECT_EQ(value_error_of([&] { load_optimizer_state(sgd, state, names); }),
            "'" + names[0].key() +
                "' is of group 0 in the state, which has 0 groups");
}

TEST(OptimizerStateTest, AParameterWithoutNameIsAnError) {
  Sequential model = small_model();
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.1));
  EXPECT_EQ(
      value_error_of(
          [&] { optimizer_state(optimizer, (*model)[0]->named_parameters()); }),
      "the optimizer's state cannot be saved:\n"
      "4 without a name (give module->named_parameters() of the module whose "
      "parameters the optimizer has):\n"
      "  parameter 2 of group 0, [4, 4]\n"
      "  parameter 3 of group 0, [4]\n"
      "  parameter 4 of group 0, [2, 4]\n"
      "  parameter 5 of group 0, [2]");
}

}  // namespace
}  // namespace gpipe
