#include "benchmarks/many_ranks/training.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstddef>

#include "gpipe/bytes/crc32c.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kWidth = 8;
constexpr double kRate = 0.1;

torch::Tensor rows_of(const Training& training, int64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({training.microbatches, kWidth});
}

}  // namespace

torch::nn::Sequential make_layers(int64_t first, int64_t count) {
  torch::nn::Sequential layers;
  for (int64_t k = first; k < first + count; ++k) {
    torch::manual_seed(k);
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  return layers;
}

torch::Tensor inputs_of(const Training& training, int64_t replica) {
  return rows_of(training, 10000 + replica);
}

torch::Tensor targets_of(const Training& training, int64_t replica) {
  return rows_of(training, 20000 + replica);
}

torch::Tensor loss_of(const torch::Tensor& output,
                      const torch::Tensor& target) {
  return torch::nn::functional::mse_loss(output, target);
}

Schedule schedule_of(const Training& training, int64_t ranks) {
  return one_forward_one_backward(static_cast<int>(ranks),
                                  static_cast<int>(training.microbatches));
}

void update(const std::vector<torch::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor each : parameters) {
    each.sub_(each.grad() * kRate);
    each.mutable_grad() = torch::Tensor();
  }
}

uint32_t bits_of(const std::vector<torch::Tensor>& parameters) {
  uint32_t bits = 0;
  for (const torch::Tensor& each : parameters) {
    const torch::Tensor values = each.detach().contiguous();
    bits = internal::crc32c(values.const_data_ptr(),
                            static_cast<int64_t>(values.nbytes()), bits);
  }
  return bits;
}

std::vector<uint32_t> train_in_one_process(const Training& training,
                                           int64_t ranks) {
  const torch::nn::Sequential layers = make_layers(0, ranks);
  GPipe pipeline(layers,
                 GPipeOptions(std::vector<int64_t>(ranks, 1))
                     .devices(std::vector<torch::Device>(ranks, torch::kCPU))
                     .threads_per_partition(1));
  const Schedule schedule = schedule_of(training, ranks);
  const std::vector<torch::Tensor> parameters = pipeline->parameters();
  const double share = 1.0 / static_cast<double>(training.replicas);
  for (int64_t step = 0; step < 1 + training.steps; ++step) {
    std::vector<torch::Tensor> sums(parameters.size());
    for (int64_t replica = 0; replica < training.replicas; ++replica) {
      pipeline->zero_grad();
      pipeline->train_step(inputs_of(training, replica),
                           targets_of(training, replica), loss_of, schedule);
      for (std::size_t k = 0; k < sums.size(); ++k) {
        const torch::Tensor part = parameters[k].grad() * share;
        sums[k] = sums[k].defined() ? sums[k] + part : part;
      }
    }
    for (std::size_t k = 0; k < sums.size(); ++k) {
      torch::Tensor(parameters[k]).mutable_grad() = sums[k];
    }
    update(parameters);
  }
  std::vector<uint32_t> bits;
  for (int64_t k = 0; k < ranks; ++k) {
    bits.push_back(bits_of(layers->ptr(k)->parameters()));
  }
  return bits;
}

}  // namespace gpipe::benchmarks
