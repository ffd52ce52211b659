// SPDX-License-Identifier: Apache-2.0
//
// A program of another Bazel project: its own model, in a pipeline of two
// partitions and four micro-batches.

#include <torch/types.h>

#include <iostream>

#include "gpipe/gpipe.h"
#include "models/classifier.h"

int main() {
  gpipe::GPipe model(consumer::classifier(),
                     gpipe::GPipeOptions({2, 2}).chunks(4));

  const torch::Tensor x = torch::randn({8, 16});
  const torch::Tensor y = model->forward(x);
  y.sum().backward();

  for (const auto& parameter : model->parameters()) {
    if (!parameter.grad().defined()) {
      std::cerr << "a parameter has no gradient\n";
      return 1;
    }
  }
  std::cout << "output " << y.sizes() << "\n";
  return 0;
}
