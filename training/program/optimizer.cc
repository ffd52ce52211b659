#include "training/program/optimizer.h"

#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>
#include <vector>

namespace gpipe::train_program {
namespace {

using torch::optim::OptimizerParamGroup;

template <typename Optimizer, typename Base>
std::unique_ptr<torch::optim::Optimizer> grouped(
    const Options& options, const std::vector<at::Tensor>& parameters,
    const Base& base) {
  std::vector<at::Tensor> decayed, others;
  for (const at::Tensor& parameter : parameters) {
    const bool decays = options.decay_norms || parameter.dim() > 1;
    (decays ? decayed : others).push_back(parameter);
  }
  std::vector<OptimizerParamGroup> groups;
  if (!others.empty()) {
    Base without = base;
    without.weight_decay(0);
    groups.emplace_back(others, std::make_unique<Base>(without));
  }
  if (!decayed.empty() || groups.empty()) {
    groups.emplace_back(decayed, std::make_unique<Base>(base));
  }
  return std::make_unique<Optimizer>(std::move(groups), base);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<at::Tensor>& parameters) {
  namespace optim = torch::optim;
  TORCH_CHECK_VALUE(options.lr > 0, "--lr=", options.lr, ": must be above 0");
  TORCH_CHECK_VALUE(options.momentum >= 0 && options.momentum < 1,
                    "--momentum=", options.momentum,
                    ": must be from 0 to below 1");
  TORCH_CHECK_VALUE(options.weight_decay >= 0,
                    "--weight_decay=", options.weight_decay,
                    ": must not be negative");
  TORCH_CHECK_VALUE(
      !options.nesterov || (options.optimizer == "sgd" && options.momentum > 0),
      "--nesterov needs --optimizer=sgd and --momentum above 0, not "
      "--optimizer=",
      options.optimizer, " and --momentum=", options.momentum);
  const double lr = options.lr, decay = options.weight_decay;
  if (options.optimizer == "sgd") {
    return grouped<optim::SGD>(options, parameters,
                               optim::SGDOptions(lr)
                                   .momentum(options.momentum)
                                   .weight_decay(decay)
                                   .nesterov(options.nesterov));
  }
  if (options.optimizer == "adam") {
    return grouped<optim::Adam>(options, parameters,
                                optim::AdamOptions(lr).weight_decay(decay));
  }
  if (options.optimizer == "adamw") {
    return grouped<optim::AdamW>(options, parameters,
                                 optim::AdamWOptions(lr).weight_decay(decay));
  }
  if (options.optimizer == "rmsprop") {
    return grouped<optim::RMSprop>(options, parameters,
                                   optim::RMSpropOptions(lr)
                                       .momentum(options.momentum)
                                       .weight_decay(decay));
  }
  if (options.optimizer == "adagrad") {
    return grouped<optim::Adagrad>(
        options, parameters, optim::AdagradOptions(lr).weight_decay(decay));
  }
  TORCH_CHECK_VALUE(false, "--optimizer=", options.optimizer,
                    ": must be sgd, adam, adamw, rmsprop or adagrad");
}

}  // namespace gpipe::train_program
