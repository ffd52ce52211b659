#include "benchmarks/harness/experiment.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <absl/strings/str_join.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {

std::string to_string(Mode mode) {
  switch (mode) {
    case Mode::kMeasure:
      return "measured";
    case Mode::kSimulate:
      return "simulated";
    case Mode::kDryRun:
      return "dry-run";
  }
  return "unknown";
}

Mode parse_mode(const std::string& text, TableKind table_kind,
                bool enough_accelerators) {
  const bool memory = table_kind == TableKind::kMemory;
  const bool timeline = table_kind == TableKind::kTimeline;
  switch (
      parse_choice("mode", text, {"auto", "measure", "simulate", "dry_run"})) {
    case 0:
      if (enough_accelerators) return Mode::kMeasure;
      return memory     ? Mode::kDryRun
             : timeline ? Mode::kSimulate
                        : Mode::kMeasure;
    case 1:
      return Mode::kMeasure;
    case 2:
      if (memory) {
        throw std::invalid_argument(
            "--mode=simulate computes times, but this table is about memory: "
            "use --mode=dry_run or --mode=measure");
      }
      return Mode::kSimulate;
    default:
      if (timeline) {
        throw std::invalid_argument(
            "--mode=dry_run has no times: use simulate, which shows memory, "
            "too, or the dry run of a memory table");
      }
      return Mode::kDryRun;
  }
}

bool parse_scale(const std::string& text, Mode mode, bool accelerators) {
  const size_t scale = parse_choice("scale", text, {"auto", "paper", "small"});
  if (scale != 0) return scale == 2;
  return mode == Mode::kMeasure && !accelerators;
}

std::vector<Experiment> select_experiments(const std::vector<Experiment>& all,
                                           const std::string& names) {
  std::vector<std::string> known;
  for (const auto& experiment : all) known.push_back(experiment.name);
  const auto wanted = split_list(names);
  for (const auto& name : wanted) {
    if (name == "all") continue;
    if (std::ranges::find(known, name) == known.end()) {
      internal::refuse("--experiment: there is no '", name, "'; there are ",
                       absl::StrJoin(known, ", "), " and all");
    }
  }
  if (wanted.empty()) {
    internal::refuse("--experiment: name one of ", absl::StrJoin(known, ", "),
                     ", or all");
  }
  if (std::ranges::find(wanted, "all") != wanted.end()) {
    return all;
  }
  std::vector<Experiment> selected;
  for (const auto& experiment : all) {
    if (std::ranges::find(wanted, experiment.name) != wanted.end()) {
      selected.push_back(experiment);
    }
  }
  return selected;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Optimizer kind, std::vector<at::Tensor> parameters, double learning_rate) {
  if (kind == Optimizer::kRmsprop) {
    return std::make_unique<torch::optim::RMSprop>(
        std::move(parameters), torch::optim::RMSpropOptions(learning_rate));
  }
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(learning_rate));
}

std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto* of_rmsprop =
        dynamic_cast<const torch::optim::RMSpropParamState*>(state.get());
    if (of_rmsprop == nullptr) continue;  // SGD without momentum has no state
    tensors.push_back(of_rmsprop->square_avg());
  }
  return tensors;
}

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
                        std::vector<int64_t> balance,
                        std::vector<std::optional<double>> published,
                        std::vector<int64_t> size) {
  Experiment row;
  row.name =
      partitions == 0 ? "baseline" : "pipeline-" + std::to_string(partitions);
  row.partitions = partitions;
  row.batch_size = batch_size;
  row.chunks = chunks;
  row.balance = std::move(balance);
  row.published = std::move(published);
  row.size = std::move(size);
  return row;
}

Experiment table_2_row(int64_t partitions, int64_t chunks, int64_t batch_size,
                       std::vector<int64_t> balance,
                       std::vector<std::optional<double>> published,
                       std::vector<int64_t> size) {
  Experiment row =
      pipeline_row(partitions, batch_size, chunks, std::move(balance),
                   std::move(published), std::move(size));
  row.name = "n" + std::to_string(partitions) + "m" + std::to_string(chunks);
  if (chunks == 1) row.checkpoint = Checkpoint::kAlways;
  return row;
}

Experiment table_3_row(int64_t partitions, int64_t batch_size,
                       std::vector<int64_t> balance,
                       std::vector<std::optional<double>> published,
                       std::vector<int64_t> size) {
  Experiment row =
      pipeline_row(partitions, batch_size, /*chunks=*/32, std::move(balance),
                   std::move(published), std::move(size));
  row.name = "p100-n" + std::to_string(partitions);
  row.base = "p100-n2";
  return row;
}

}  // namespace gpipe::benchmarks
