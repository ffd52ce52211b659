// An operator that only sleeps.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <thread>

namespace gpipe::benchmarks {

inline void nap(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// An identity that sleeps for `forth` seconds in forward and for `back` seconds
// in backward.
struct Nap : torch::autograd::Function<Nap> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& x, double forth, double back) {
    context->saved_data["back"] = back;
    nap(forth);
    return x.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::tensor_list grads) {
    nap(context->saved_data["back"].toDouble());
    return {grads[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace gpipe::benchmarks
