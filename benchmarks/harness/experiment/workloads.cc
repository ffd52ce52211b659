#include "benchmarks/harness/experiment/workloads.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/nn/functional/loss.h>

#include <string>
#include <utility>

namespace gpipe::benchmarks {
namespace {

std::string shape_text(int64_t size) {
  const std::string side = std::to_string(size);
  return "random 3x" + side + "x" + side + " images";
}

std::function<at::Tensor(int64_t)> images(int64_t size) {
  return [size](int64_t rows) { return at::rand({rows, 3, size, size}); };
}

}  // namespace

Workload with_rows(Workload workload, std::vector<Experiment> experiments,
                   const Length& length) {
  workload.samples_per_epoch = length.samples_per_epoch;
  workload.epochs = length.epochs;
  workload.skip_epochs = length.skip_epochs;
  workload.experiments = std::move(experiments);
  return workload;
}

Workload images_of_classes(int64_t size, int64_t classes) {
  Workload workload;
  workload.text =
      shape_text(size) + " of " + std::to_string(classes) + " classes";
  workload.input = images(size);
  workload.target = [classes](int64_t rows) {
    return at::randint(classes, {rows}, at::kLong);
  };
  return workload;
}

Workload images_with_masks(int64_t size, Mask mask) {
  Workload workload;
  workload.text = shape_text(size) + " with masks";
  workload.input = images(size);
  workload.target = [size, mask](int64_t rows) {
    return mask == Mask::kOnes ? at::ones({rows, 1, size, size})
                               : at::rand({rows, 1, size, size});
  };
  return workload;
}

Workload tokens(int64_t length, int64_t vocabulary) {
  Workload workload;
  workload.text = "random texts of " + std::to_string(length) + " of " +
                  std::to_string(vocabulary) + " tokens";
  workload.input = [length, vocabulary](int64_t rows) {
    return at::randint(vocabulary, {rows, length}, at::kLong);
  };
  workload.target = workload.input;
  return workload;
}

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output.flatten(0, -2),
                                              target.flatten());
}

at::Tensor mask_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::binary_cross_entropy_with_logits(output,
                                                                 target);
}

std::vector<Experiment> reduced(
    std::vector<Experiment> experiments, int64_t batch_size, int64_t chunks,
    const std::vector<std::vector<int64_t>>& sizes) {
  for (size_t i = 0; i < experiments.size(); ++i) {
    auto& experiment = experiments[i];
    if (!sizes.empty()) experiment.size = sizes.at(i);
    experiment.batch_size = batch_size;
    if (experiment.partitions > 0 && experiment.chunks > 1) {
      experiment.chunks = chunks;
    }
    experiment.balance.clear();
  }
  return experiments;
}

Experiment pipeline_row(int64_t partitions, int64_t batch_size, int64_t chunks,
                        const std::vector<int64_t>& balance) {
  Experiment row;
  row.name =
      partitions == 0 ? "baseline" : "pipeline-" + std::to_string(partitions);
  row.partitions = partitions;
  row.batch_size = batch_size;
  row.chunks = chunks;
  row.balance = balance;
  return row;
}

Experiment table_2_row(int64_t partitions, int64_t chunks) {
  Experiment row;
  row.name = "n" + std::to_string(partitions) + "m" + std::to_string(chunks);
  row.partitions = partitions;
  row.chunks = chunks;
  row.checkpoint = chunks == 1 ? Checkpoint::kAlways : Checkpoint::kExceptLast;
  return row;
}

Experiment table_3_row(int64_t partitions) {
  Experiment row;
  row.name = "p100-n" + std::to_string(partitions);
  row.partitions = partitions;
  row.chunks = 32;
  row.base = "p100-n2";
  return row;
}

}  // namespace gpipe::benchmarks
