#include "tools/exported_compare.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "balancing/partition.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "models/exported/comparison.h"
#include "models/exported/exported.h"
#include "models/weights/hugging_face.h"
#include "models/weights/safetensors.h"
#include "models/weights/torch_file.h"

namespace gpipe::tools {
namespace {

using exported::ExportedStep;
using exported::Reference;
using exported::StepDifference;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kSeed = 7;  // that of Python's step

Reference read_reference(const std::string& path) {
  const bool is_torch = std::filesystem::path(path).extension() == ".pt";
  try {
    return exported::reference_of(is_torch ? read_torch_file(path)
                                           : read_safetensors(path).tensors);
  } catch (c10::Error& error) {
    error.add_context("in the reference '" + path + "'");
    throw;
  }
}

// A program, and the folder with the weights to use instead of its own, or "".
struct Source {
  std::string path, weights;

  ExportedModel load(int64_t max_crossing) const {
    ExportedModel model =
        load_exported(path, ExportedOptions().max_crossing(max_crossing));
    if (!weights.empty()) load_hugging_face(weights, model);
    return model;
  }
  ExportedModel load_whole() const { return load(0); }
};

// Returns the outputs of `module`, a Sequential or a GPipe, in eval mode, and
// sets train mode again. Returns nothing if `python` has no such outputs.
template <typename Module>
Tensors evaluate(Module& module, const Tensors& inputs,
                 const Reference& python) {
  if (python.step.evaluated.empty()) return {};
  const at::NoGradGuard no_grad;
  module->eval();
  Tensors outputs = exported::call(module, inputs, python.weights.size());
  module->train();
  return outputs;
}

ExportedStep step_in_one_piece(ExportedModel& model, const Reference& reference,
                               Tensors evaluated) {
  torch::manual_seed(kSeed);
  const Tensors outputs =
      exported::call(model.layers, reference.inputs, model.outputs.size());
  exported::loss_of(outputs, reference.weights).backward();
  return exported::step_of(model, outputs, std::move(evaluated));
}

// Returns the rows of micro-batch `k`.
Tensors part_of(const Tensors& tensors, int64_t count, int64_t k) {
  Tensors parts;
  for (const at::Tensor& each : tensors) {
    parts.push_back(each.tensor_split(count)[k]);
  }
  return parts;
}

// Runs all forwards, then all backwards, one micro-batch after the other.
ExportedStep step_in_microbatches(const Source& source,
                                  const Reference& reference, int64_t count) {
  ExportedModel model = source.load_whole();
  std::vector<Tensors> evaluated, outputs;
  for (int64_t k = 0; k < count; ++k) {
    evaluated.push_back(
        evaluate(model.layers, part_of(reference.inputs, count, k), reference));
  }
  torch::manual_seed(kSeed);
  for (int64_t k = 0; k < count; ++k) {
    outputs.push_back(exported::call(model.layers,
                                     part_of(reference.inputs, count, k),
                                     model.outputs.size()));
  }
  for (int64_t k = 0; k < count; ++k) {
    exported::loss_of(outputs[k], part_of(reference.weights, count, k))
        .backward();
  }
  return exported::step_of(model, exported::join_rows(outputs),
                           exported::join_rows(evaluated));
}

// A pipeline to compare.
struct Setting {
  int partitions;
  std::string schedule;  // a name of named_schedule()
  Checkpoint checkpoint;

  std::string text() const {
    return std::to_string(partitions) + " partitions, " + schedule + ", " +
           to_string(checkpoint);
  }
};

std::vector<Setting> settings_of(bool all) {
  if (!all) {
    return {{2, "1f1b", Checkpoint::kExceptLast},
            {4, "1f1b", Checkpoint::kExceptLast}};
  }
  std::vector<Setting> settings;
  for (const int partitions : {2, 3, 4}) {
    for (const char* schedule : {"fill-drain", "1f1b", "zb-h1"}) {
      for (const auto mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
        settings.push_back({partitions, schedule, mode});
      }
    }
  }
  return settings;
}

ExportedStep step_in_pipeline(ExportedModel& model, const Reference& reference,
                              const Setting& setting, int64_t count) {
  const int partitions = setting.partitions;
  const std::vector<double> equal_costs(model.layers->size(), 1);
  GPipe pipeline(
      model.layers,
      GPipeOptions(balancing::balance_cost(equal_costs, partitions))
          .devices(std::vector<torch::Device>(partitions, torch::kCPU))
          .chunks(count)
          .checkpoint(setting.checkpoint)
          .threads_per_partition(1));
  // With a total weight of 1, gradients are those of the sum. `count` is a
  // power of two, so that this rounds nothing.
  const auto loss = [count](const Tensors& outputs, const Tensors& weights) {
    return WeightedLoss{exported::loss_of(outputs, weights),
                        at::scalar_tensor(1. / static_cast<double>(count)),
                        {}};
  };
  const auto of_one = [loss](const at::Tensor& output,
                             const at::Tensor& weight) {
    return loss({output}, {weight});
  };
  const Schedule schedule =
      named_schedule(setting.schedule, partitions, static_cast<int>(count),
                     /*stages_per_rank=*/1);
  const auto options = TrainOptions().fixed_sum_order(true).outputs(true);
  Tensors evaluated = evaluate(pipeline, reference.inputs, reference);
  torch::manual_seed(kSeed);
  const auto train = [&](const auto& input) {
    if (model.outputs.size() == 1) {
      return pipeline->train_step(input, reference.weights[0], of_one, schedule,
                                  options);
    }
    return pipeline->train_step<Tensors>(input, reference.weights, loss,
                                         schedule, options);
  };
  const StepResult result = reference.inputs.size() == 1
                                ? train(reference.inputs[0])
                                : train(reference.inputs);
  return exported::step_of(model,
                           model.outputs.size() == 1 ? Tensors{result.output()}
                                                     : result.output<Tensors>(),
                           std::move(evaluated));
}

// Writes a line and returns whether all differences are small enough.
bool report(std::ostream& out, const std::string& run, const ExportedStep& step,
            const ExportedStep& expected, double tolerance) {
  const StepDifference found = exported::differences(step, expected);
  out << run << ": " << exported::text_of(found.outputs, "outputs") << ", "
      << exported::text_of(found.grads, "gradients") << ", "
      << exported::text_of(found.buffers, "buffers");
  if (!expected.evaluated.empty()) {
    out << ", " << exported::text_of(found.evaluated, "outputs in eval()");
  }
  out << "\n";
  return found.outputs.largest <= tolerance &&
         found.grads.largest <= tolerance &&
         found.buffers.largest <= tolerance &&
         found.evaluated.largest <= tolerance;
}

}  // namespace

bool compare_exported(const std::string& model, const std::string& reference,
                      int64_t max_crossing, double tolerance, bool all_settings,
                      std::ostream& out, const std::string& weights) {
  at::set_num_threads(1);
  const Source source{model, weights};
  Reference python = read_reference(reference);
  ExportedModel whole = source.load_whole();
  Tensors evaluated;
  try {
    evaluated = evaluate(whole.layers, python.inputs, python);
  } catch (const c10::ValueError& error) {
    out << "in eval(): " << error.what_without_backtrace() << "\n";
    python.step.evaluated.clear();
    python.in_chunks.evaluated.clear();
    whole = source.load_whole();  // in train mode
  }
  bool is_close = report(out, "one piece, compared with Python",
                         step_in_one_piece(whole, python, std::move(evaluated)),
                         python.step, tolerance);
  int64_t count = python.chunks;
  ExportedStep expected = python.in_chunks;
  std::string compared = "Python's micro-batches";
  if (count == 0) {
    const int64_t rows = python.inputs[0].size(0);
    for (count = 1; count < 4 && 2 * count <= rows;) count *= 2;
    expected = step_in_microbatches(source, python, count);
    compared = "one piece";
  }
  for (const Setting& setting : settings_of(all_settings)) {
    ExportedModel layers = source.load(max_crossing);
    if (static_cast<int>(layers.layers->size()) < setting.partitions) break;
    const std::string run = setting.text() + ", " + std::to_string(count) +
                            " micro-batches, compared with " + compared;
    is_close &=
        report(out, run, step_in_pipeline(layers, python, setting, count),
               expected, tolerance);
  }
  return is_close;
}

}  // namespace gpipe::tools
