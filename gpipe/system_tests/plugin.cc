// A plugin: a shared library that contains gpipe.
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <exception>
#include <string>

#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/schedule.h"

namespace {

namespace nn = torch::nn;
using torch::Tensor;

// A function that draws random numbers, checkpointed.
struct DropImpl : nn::Module {
  Tensor forward(Tensor x) {
    return gpipe::checkpoint(
        [](Tensor h) { return torch::dropout(h, 0.5, true); }, x);
  }
};
TORCH_MODULE(Drop);

// Returns "ok" if a step of a pipeline that recomputes has the bits of one that
// does not. Only interceptors that work give both the same random numbers.
std::string train() {
  const auto grads_with = [](gpipe::Checkpoint mode) {
    torch::manual_seed(1);
    nn::Sequential model(nn::Linear(8, 8), nn::Dropout(0.5), Drop(),
                         nn::Linear(8, 8));
    gpipe::GPipe pipeline(model, gpipe::GPipeOptions({2, 2})
                                     .chunks(2)
                                     .devices({torch::kCPU, torch::kCPU})
                                     .checkpoint(mode));
    pipeline->train_step(
        torch::ones({4, 8}), torch::ones({4, 8}),
        [](Tensor output, Tensor target) {
          return (output - target).square().mean();
        },
        gpipe::one_forward_one_backward(2, 2));
    return pipeline->parameters()[0].grad();
  };
  const Tensor always = grads_with(gpipe::Checkpoint::kAlways);
  const Tensor never = grads_with(gpipe::Checkpoint::kNever);
  if (always.abs().sum().item<double>() == 0) return "no gradient";
  return torch::equal(always, never) ? "ok" : "other gradients";
}

std::string place() {
  nn::Linear linear(2, 2);
  linear = gpipe::parallelize_module(linear, "cpu");
  return gpipe::placed_forward(linear, torch::ones({1, 2})).dim() == 2
             ? "ok"
             : "another shape";
}

}  // namespace

// Returns "ok", or the text of an exception. Valid until the next call.
// `what`: "train" or "place".
extern "C" const char* run_plugin(const char* what) {
  static auto* const text = new std::string();
  try {
    *text = std::string(what) == "train" ? train() : place();
  } catch (const c10::Error& error) {
    *text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    *text = std::string("another exception: ") + error.what();
  }
  return text->c_str();
}
