#include "gpipe/testing/models.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "gpipe/skip/skippable.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {
namespace {

struct StashImpl : torch::nn::Module, Skippable {
  explicit StashImpl(bool as_integer)
      : Skippable({{"skip"}, {}}), as_integer(as_integer) {}
  torch::Tensor forward(torch::Tensor x) {
    stash("skip", as_integer ? x.sign().to(torch::kLong) : x);
    return x;
  }
  bool as_integer;
};
TORCH_MODULE(Stash);

struct PopAddImpl : torch::nn::Module, Skippable {
  PopAddImpl() : Skippable({{}, {"skip"}}) {}
  torch::Tensor forward(torch::Tensor x) { return x + *pop("skip"); }
};
TORCH_MODULE(PopAdd);

// Returns a copy on the CPU.
torch::Tensor on_cpu(const torch::Tensor& tensor) {
  return tensor.defined()
             ? tensor.detach().to(torch::kCPU, tensor.scalar_type(),
                                  /*non_blocking=*/false,
                                  /*copy=*/true)
             : tensor;
}

torch::Tensor leaf_of(const torch::Tensor& input, const c10::Device& where) {
  const auto leaf = input.detach().clone().to(where);
  return leaf.is_floating_point() ? leaf.requires_grad_() : leaf;
}

// Runs backward for the part of these rows in the loss of a mini-batch of
// `rows` rows.
void backward(const Loss& loss, const torch::Tensor& output,
              const torch::Tensor& input, int64_t rows) {
  (loss(output, input) / static_cast<double>(rows)).backward();
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || torch::equal(a.cpu(), b.cpu());
}

// Returns the index of the first tensor that is not `same`, or the number of
// tensors.
template <typename Same>
std::size_t first_difference(const std::vector<torch::Tensor>& a,
                             const std::vector<torch::Tensor>& b,
                             const Same& same) {
  const auto at =
      std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same).first;
  return static_cast<std::size_t>(at - a.begin());
}

std::string describe_difference(std::size_t k, std::size_t size) {
  return k == size ? "" : "tensor " + std::to_string(k);
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.defined() != b.defined()) return kInfinity;
  if (!a.defined()) return 0;
  if (a.sizes() != b.sizes()) return kInfinity;
  if (a.numel() == 0) return 0;
  const double largest =
      (a.cpu().to(torch::kDouble) - b.cpu().to(torch::kDouble))
          .abs()
          .max()
          .item<double>();
  return std::isnan(largest) ? kInfinity : largest;
}

}  // namespace

torch::nn::Sequential conv_model(double dropout) {
  using namespace torch::nn;
  Sequential model;
  model->push_back(Conv2d(Conv2dOptions(3, 6, 3).padding(1)));
  model->push_back(BatchNorm2d(6));
  model->push_back(ReLU());
  model->push_back(Dropout(dropout));
  model->push_back(Conv2d(Conv2dOptions(6, 4, 3).stride(2)));
  model->push_back(Dropout2d(dropout));
  model->push_back(Flatten());
  model->push_back(Linear(4 * 3 * 3, 5));
  model->to(torch::kDouble);
  return model;
}

torch::nn::Sequential skip_model() {
  using namespace torch::nn;
  Namespace outer, inner;
  Sequential model;
  Stash first(false), second(true);
  first->isolate(outer);
  second->isolate(inner);
  PopAdd pop_inner, pop_outer;
  pop_inner->isolate(inner);
  pop_outer->isolate(outer);
  model->push_back(first);
  model->push_back(Linear(4, 4));
  model->push_back(second);
  model->push_back(Linear(4, 4));
  model->push_back(pop_inner);
  model->push_back(Tanh());
  model->push_back(pop_outer);
  model->to(torch::kDouble);
  return model;
}

torch::nn::Sequential linear_model() {
  using namespace torch::nn;
  Sequential model;
  model->push_back(Linear(6, 8));
  model->push_back(Tanh());
  model->push_back(Linear(8, 8));
  model->push_back(Sigmoid());
  model->push_back(Linear(8, 3));
  model->push_back(Softplus());
  model->to(torch::kDouble);
  return model;
}

const std::map<std::string, Subject>& subjects() {
  static const auto* const all = new std::map<std::string, Subject>{
      {"linear", {linear_model, {6}, {3}}},
      {"conv", {[] { return conv_model(0.3); }, {3, 8, 8}, {5}}},
      {"skip", {skip_model, {4}, {4}}},
  };
  return *all;
}

std::vector<int64_t> with_rows(int64_t rows, std::vector<int64_t> sizes) {
  sizes.insert(sizes.begin(), rows);
  return sizes;
}

torch::Tensor sum_of_squares(const torch::Tensor& output,
                             const torch::Tensor& /*input*/) {
  return output.pow(2).sum();
}

StepState state_after(torch::nn::Module& module, const torch::Tensor& output,
                      const torch::Tensor& input) {
  StepState state;
  state.output = on_cpu(output);
  std::vector<torch::Tensor> leaves = module.parameters();
  leaves.insert(leaves.begin(), input);
  state.grads = grads_of(leaves);
  for (const auto& buffer : module.buffers()) {
    state.buffers.push_back(on_cpu(buffer));
  }
  return state;
}

StepState training_step(torch::nn::Module& module, const Forward& forward,
                        const torch::Tensor& input, const Loss& loss) {
  module.zero_grad();
  const auto x = leaf_of(input, device());
  const auto output = forward(x);
  backward(loss, output, x, input.size(0));
  return state_after(module, output, x);
}

StepState plain_step(torch::nn::Sequential module, const torch::Tensor& input,
                     int64_t chunks, const Loss& loss) {
  module->to(reference_device());
  module->zero_grad();
  const auto x = leaf_of(input, reference_device());
  const auto pieces = x.chunk(chunks);
  std::vector<torch::Tensor> outputs;
  for (const auto& piece : pieces) outputs.push_back(module->forward(piece));
  for (std::size_t i = pieces.size(); i-- > 0;) {
    backward(loss, outputs[i], pieces[i], input.size(0));
  }
  return state_after(*module, torch::cat(outputs), x);
}

std::vector<torch::Tensor> grads_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> grads;
  for (const torch::Tensor& each : tensors) {
    grads.push_back(on_cpu(each.grad()));
  }
  return grads;
}

std::vector<torch::Tensor> grads_of(const torch::nn::Module& module) {
  return grads_of(module.parameters());
}

std::string difference(const std::vector<torch::Tensor>& a,
                       const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size()) return "number of tensors";
  return describe_difference(first_difference(a, b, same_bits), a.size());
}

std::string difference(const std::vector<torch::Tensor>& a,
                       const std::vector<torch::Tensor>& b, double relative,
                       double absolute) {
  if (a.size() != b.size()) return "number of tensors";
  const auto close = [&](const torch::Tensor& one, const torch::Tensor& other) {
    if (one.defined() != other.defined()) return false;
    return !one.defined() ||
           torch::allclose(one.cpu(), other.cpu(), relative, absolute);
  };
  return describe_difference(first_difference(a, b, close), a.size());
}

std::string difference(const StepState& a, const StepState& b) {
  if (!same_bits(a.output, b.output)) return "output";
  if (a.grads.size() != b.grads.size()) return "number of gradients";
  std::size_t k = first_difference(a.grads, b.grads, same_bits);
  if (k < a.grads.size()) {
    return k == 0 ? "gradient of the input"
                  : "gradient of parameter " + std::to_string(k - 1);
  }
  if (a.buffers.size() != b.buffers.size()) return "number of buffers";
  k = first_difference(a.buffers, b.buffers, same_bits);
  return k == a.buffers.size() ? "" : "buffer " + std::to_string(k);
}

double distance(const std::vector<torch::Tensor>& a,
                const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    largest = std::max(largest, distance(a[k], b[k]));
  }
  return largest;
}

double distance(const StepState& a, const StepState& b) {
  return std::max({distance(a.output, b.output), distance(a.grads, b.grads),
                   distance(a.buffers, b.buffers)});
}

}  // namespace gpipe::testing
