#include "training/program/step.h"

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace gpipe::train_program {

// ---- Number formats

void Precision::convert(torch::nn::Sequential& model) const {
  if (parameters == at::kFloat) return;
  // Module::to(dtype) would convert the counters of BatchNorm, too.
  const auto convert_all = [this](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(parameters));
    }
  };
  const torch::NoGradGuard no_grad;
  convert_all(model->parameters());
  convert_all(model->buffers());
}

Sample Precision::prepare(Sample sample) const {
  // Without a conversion, a model from a file may take another dtype.
  if (parameters == at::kFloat) return sample;
  return with_inputs_changed(std::move(sample), [this](const at::Tensor& each) {
    return each.is_floating_point() ? each.to(parameters) : each;
  });
}

std::unique_ptr<AutocastScope> Precision::scope(c10::DeviceType device) const {
  if (!autocast) return nullptr;
  return std::make_unique<AutocastScope>(device, *autocast);
}

Precision precision_of(const std::string& name) {
  Precision precision;
  if (name == "amp-float16") {
    precision.autocast = at::kHalf;
  } else if (name == "amp-bfloat16") {
    precision.autocast = at::kBFloat16;
  } else if (name == "bfloat16") {
    precision.parameters = at::kBFloat16;
  } else {
    TORCH_CHECK_VALUE(name == "float32", "--precision=", name,
                      ": must be float32, amp-float16, amp-bfloat16 or "
                      "bfloat16");
  }
  return precision;
}

// ---- Data

namespace {

// Returns rows of the training data, counted from 0 over all epochs.
Sample load_rows(Task& task, int64_t batch, Rows rows) {
  std::vector<Sample> parts;
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t index = row / batch;
    const int64_t end = std::min(rows.end, (index + 1) * batch);
    const int64_t first = index * batch;
    parts.push_back(task.train_batch(index, {row - first, end - first}));
    row = end;
  }
  if (parts.size() == 1) return std::move(parts.front());
  const auto joined = [&](const auto& tensor_of) {
    std::vector<at::Tensor> tensors;
    for (const Sample& each : parts) tensors.push_back(tensor_of(each));
    return at::cat(tensors);
  };
  Sample all{joined([](const Sample& each) { return each.input; }),
             joined([](const Sample& each) { return each.target; }),
             {}};
  for (std::size_t k = 0; k < parts.front().further.size(); ++k) {
    all.further.push_back(
        joined([k](const Sample& each) { return each.further[k]; }));
  }
  return all;
}

}  // namespace

void pin(StepData& data, const c10::Device& device) {
  if (device.is_cpu()) return;
  const auto pin = [](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.pin_memory();
  };
  for (Sample& part : data.parts) {
    pin(part.input);
    pin(part.target);
    for (at::Tensor& each : part.further) pin(each);
  }
}

StepData load_step(Task& task, const StepShare& share, int64_t step) {
  const int64_t rows = share.batch * share.accumulate;
  const int64_t begin = step * rows;
  StepData data;
  data.split = task.has_parts();
  if (!data.split) {
    const int64_t own = rows / share.replicas;
    const int64_t first = begin + share.replica * own;
    data.parts = {load_rows(task, share.batch, {first, first + own})};
    data.items = data.parts.front().target.numel() * share.replicas;
    return data;
  }
  auto all = task.train_parts({begin, begin + rows},
                              share.microbatches * share.replicas);
  for (std::size_t k = 0; k < all.size(); ++k) {
    data.items += all[k].target.numel();
    if (static_cast<int64_t>(k) % share.replicas == share.replica) {
      data.parts.push_back(std::move(all[k]));
    }
  }
  return data;
}

// ---- Optimizers

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
  if (!others.empty()) groups.emplace_back(others);
  if (!decayed.empty() || groups.empty()) groups.emplace_back(decayed);
  auto optimizer = std::make_unique<Optimizer>(std::move(groups), base);
  // Afterwards, because the constructor replaces options of a group that equal
  // LibTorch's defaults, such as a weight decay of 0, by those of `base`.
  if (!others.empty()) {
    auto& first = optimizer->param_groups().front().options();
    static_cast<Base&>(first).weight_decay(0);
  }
  return optimizer;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<at::Tensor>& parameters) {
  namespace optim = torch::optim;
  TORCH_CHECK_VALUE(options.lr > 0 && std::isfinite(options.lr),
                    "--lr=", options.lr, ": must be above 0, and finite");
  TORCH_CHECK_VALUE(options.momentum >= 0 && options.momentum < 1,
                    "--momentum=", options.momentum,
                    ": must be from 0 to below 1");
  TORCH_CHECK_VALUE(
      options.weight_decay >= 0 && std::isfinite(options.weight_decay),
      "--weight_decay=", options.weight_decay,
      ": must not be negative, and finite");
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
