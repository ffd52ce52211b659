// Places the parts of a model on several devices. The model's code contains
// nothing about devices. Without accelerators all devices are the CPU.
//
//   ./bazelw run //examples:placement
#include "gpipe/placement.h"

#include <torch/torch.h>

#include <iostream>
#include <string>

// These modules contain nothing about devices.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t size)
      : norm(torch::nn::LayerNormOptions({size})),
        up(size, 4 * size),
        down(4 * size, size) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) {
    return x + down(torch::gelu(up(norm(x))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() : early(32), late(32), head(32, 10) {
    register_module("early", early);
    register_module("late", late);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto y = early(x);
    return head(y + late(y));
  }
  Block early, late;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

int main() {
  torch::manual_seed(0);
  const auto count = torch::cuda::device_count();
  const std::string first = count > 0 ? "cuda:0" : "cpu";
  const std::string second = count > 1 ? "cuda:1" : first;

  Net net;
  const auto x = torch::randn({64, 32});
  const auto target = torch::randint(10, {64});

  gpipe::parallelize_pipeline(net, {{"", first},       // the root
                                    {"late", second},  // all of it
                                    {"head", {second, first}}});
  std::cout << net << "\n";

  torch::optim::Adam optimizer(net->parameters(), 1e-2);
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    const auto output = net->forward(x);
    const auto loss =
        torch::nn::functional::cross_entropy(output, target.to(first));
    loss.backward();
    optimizer.step();
    if (step % 10 == 0) std::cout << loss.item<float>() << "\n";
  }

  {
    const torch::NoGradGuard no_grad;
    net->eval();
    const auto scores = gpipe::placed_forward(net, x);
    std::cout << scores.argmax(1).eq(target.to(first)).sum().item<int64_t>()
              << " of 64\n";
  }

  // Moves the whole module to one device again.
  gpipe::unparallelize_pipeline(net, "cpu");
  std::cout << net << "\n"
            << net->forward(x).argmax(1).eq(target).sum() << "\n";
}
