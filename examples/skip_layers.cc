// A skip connection over many layers. The tensor is copied directly from the
// partition that stashes it to the one that pops it. Layers in between need no
// change. Use the two layers below as a template.
//
//   ./bazelw run //examples:skip_layers
//
// or with each partition in a process, which sends the tensor directly to the
// other one:
//
//   launch --nproc=3 -- skip_layers --distributed
#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/skip.h"

// Stashes its input for the Add of the same namespace, and returns it.
struct KeepImpl : torch::nn::Module, gpipe::Skippable {
  KeepImpl() : Skippable({/*stash=*/{"kept"}, /*pop=*/{}}) {}

  torch::Tensor forward(torch::Tensor x) {
    stash("kept", x);
    return x;
  }
};
TORCH_MODULE(Keep);

// Adds the stashed tensor to its input.
struct AddImpl : torch::nn::Module, gpipe::Skippable {
  AddImpl() : Skippable({/*stash=*/{}, /*pop=*/{"kept"}}) {}

  torch::Tensor forward(torch::Tensor x) { return x + *pop("kept"); }
};
TORCH_MODULE(Add);

void run(bool distributed) {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int block = 0; block < 2; ++block) {
    // Each pair needs a namespace, since both pairs use the name "kept".
    const gpipe::Namespace pair;
    Keep keep;
    keep->isolate(pair);
    Add add;
    add->isolate(pair);
    model->push_back(keep);
    model->push_back(torch::nn::Linear(16, 64));
    model->push_back(torch::nn::ReLU());
    model->push_back(torch::nn::Linear(64, 16));
    model->push_back(add);
  }
  const auto input = torch::randn({32, 16});
  const auto plain = model->forward(input);

  const std::vector<int64_t> balance = {3, 4, 3};
  std::optional<torch::Tensor> output;
  if (distributed) {
    const auto world =
        gpipe::World::connect(gpipe::WorldOptions::from_environment());
    gpipe::DistributedPipeline pipeline(
        model, gpipe::DistributedOptions(balance).chunks(4), world);
    output = pipeline->forward(input.to(pipeline->device()));
    if (!output) return;  // the last partition is in another process
  } else {
    gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance).chunks(4));
    output = pipeline->forward(input.to(pipeline->devices().front()));
    output->sum().backward();
  }
  std::cout << "largest difference from the plain model: "
            << (output->cpu() - plain).abs().max().item<float>() << "\n";
}

int main(int argc, char** argv) {
  try {
    run(argc == 2 && std::string(argv[1]) == "--distributed");
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
