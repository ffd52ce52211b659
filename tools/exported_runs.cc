#include "tools/exported_runs.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <utility>
#include <vector>

#include "balancing/balancing.h"
#include "balancing/partition.h"
#include "gpipe/base/text.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/meta.h"
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
  try {
    return exported::reference_of(internal::is_torch_file(path)
                                      ? read_torch_file(path)
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

// Runs a step of a pipeline with these inputs and this number of outputs.
// `loss(outputs, target)`: see PipelineModule::train_step().
template <typename Target, typename Loss>
StepResult train(GPipe& pipeline, const Tensors& inputs, std::size_t outputs,
                 const Target& target, const Loss& loss,
                 const Schedule& schedule, const TrainOptions& options = {}) {
  const auto of_one = [loss](const at::Tensor& output, const Target& own) {
    return loss({output}, own);
  };
  const auto step = [&](const auto& input) {
    if (outputs == 1) {
      return pipeline->train_step(input, target, of_one, schedule, options);
    }
    return pipeline->train_step<Tensors>(input, target, loss, schedule,
                                         options);
  };
  return inputs.size() == 1 ? step(inputs[0]) : step(inputs);
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
  const Schedule schedule =
      named_schedule(setting.schedule, partitions, static_cast<int>(count),
                     /*stages_per_rank=*/1);
  const auto options = TrainOptions().fixed_sum_order(true).outputs(true);
  Tensors evaluated = evaluate(pipeline, reference.inputs, reference);
  torch::manual_seed(kSeed);
  const StepResult result =
      train(pipeline, reference.inputs, model.outputs.size(), reference.weights,
            loss, schedule, options);
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

namespace {

using Table = std::vector<std::vector<std::string>>;

void check(const ExportedMemoryOptions& options) {
  TORCH_CHECK_VALUE(options.partitions >= 1 && options.partitions <= 128,
                    "--partitions=", options.partitions,
                    ": must be 1 to 128, which LibTorch can number");
  TORCH_CHECK_VALUE(options.batch >= 1, "--batch=", options.batch,
                    ": must be at least 1");
  TORCH_CHECK_VALUE(options.chunks >= 1 && options.chunks <= options.batch,
                    "--chunks=", options.chunks,
                    ": must be 1 to --batch=", options.batch);
  TORCH_CHECK_VALUE(options.param_scale >= 2,
                    "--param_scale=", options.param_scale,
                    ": must be at least 2, for a parameter and its gradient");
  TORCH_CHECK_VALUE(options.memory_gib >= 0,
                    "--memory_gib=", options.memory_gib,
                    ": must not be negative");
}

// Returns a tensor of the meta device with the sizes of an input.
at::Tensor input_of(const ExportedTensor& input,
                    const ExportedMemoryOptions& options) {
  std::vector<int64_t> sizes;
  for (std::size_t k = 0; k < input.sizes.size(); ++k) {
    TORCH_CHECK_VALUE(input.sizes[k] || k == 0 || options.other_sizes > 0,
                      "the input '", input.name, "' is ", input.shape,
                      ", so dimension ", k,
                      " varies; give its size with --other_sizes");
    sizes.push_back(
        input.sizes[k].value_or(k == 0 ? options.batch : options.other_sizes));
  }
  return at::empty(sizes, at::TensorOptions()
                              .dtype(input.dtype.value_or(c10::kFloat))
                              .device(c10::kMeta));
}

at::Tensor sum_of(const Tensors& outputs) {
  at::Tensor sum;
  for (const at::Tensor& each : outputs) {
    if (!each.is_floating_point()) continue;
    sum = sum.defined() ? sum + each.sum() : each.sum();
  }
  TORCH_CHECK_VALUE(sum.defined(), "has no output of floating-point numbers");
  return sum;
}

// Runs a step, and drops its gradients at the end.
void run_step(GPipe& pipeline, const Tensors& inputs, std::size_t outputs,
              const ExportedMemoryOptions& options) {
  const Schedule schedule = one_forward_one_backward(
      static_cast<int>(options.partitions), static_cast<int>(options.chunks));
  const c10::Device last = pipeline->devices().back();
  const c10::DeviceGuard on_last(last);
  const at::Tensor target = internal::to_meta_device(
      at::empty({options.batch}, at::TensorOptions().device(c10::kMeta)), last);
  const auto loss = [](const Tensors& output, const at::Tensor&) {
    return sum_of(output);
  };
  train(pipeline, inputs, outputs, target, loss, schedule);
}

// The lasting bytes of a device.
struct Lasting {
  int64_t weights = 0;
  int64_t trained = 0;  // the part of them that has gradients
};

std::vector<Lasting> lasting_of(const GPipe& pipeline) {
  std::vector<Lasting> all(pipeline->devices().size());
  for (const at::Tensor& each : pipeline->parameters()) {
    Lasting& here = all.at(each.device().index());
    here.weights += static_cast<int64_t>(each.nbytes());
    if (each.requires_grad()) {
      here.trained += static_cast<int64_t>(each.nbytes());
    }
  }
  for (const at::Tensor& each : pipeline->buffers()) {
    all.at(each.device().index()).weights +=
        static_cast<int64_t>(each.nbytes());
  }
  return all;
}

// Returns the bytes of each device.
std::vector<double> print(const std::vector<int64_t>& balance,
                          const std::vector<Lasting>& lasting,
                          const MetaLedger& ledger, double param_scale,
                          std::ostream& out) {
  std::vector<double> sums;
  Table table = {{"device", "layers", "weights", "gradients", "optimizer",
                  "activations", "sum"}};
  double largest = 0, weights = 0;
  for (std::size_t k = 0; k < balance.size(); ++k) {
    const auto gradients = static_cast<double>(lasting[k].trained);
    const double state = (param_scale - 2) * gradients;
    const auto own = static_cast<double>(lasting[k].weights);
    const auto activations = static_cast<double>(
        ledger.of(static_cast<c10::DeviceIndex>(k)).transient_peak);
    const double sum = own + gradients + state + activations;
    largest = std::max(largest, sum);
    sums.push_back(sum);
    weights += own;
    table.push_back({std::to_string(k), std::to_string(balance[k]),
                     bytes_text(own), bytes_text(gradients), bytes_text(state),
                     bytes_text(activations), bytes_text(sum)});
  }
  out << columns_text(table, "r")
      << "weights of all devices: " << bytes_text(weights)
      << "; largest sum of a device: " << bytes_text(largest) << "\n";
  return sums;
}

// Compares the bytes of each device with its memory. Returns whether all fit.
bool print_missing(const std::vector<double>& sums, double memory_gib,
                   std::ostream& out) {
  const double memory = memory_gib * std::pow(2, 30);
  bool fits = true;
  for (std::size_t k = 0; k < sums.size(); ++k) {
    if (sums[k] <= memory) continue;
    fits = false;
    out << "device " << k << " lacks " << bytes_text(sums[k] - memory)
        << " of its " << bytes_text(memory) << "\n";
  }
  if (fits)
    out << "all devices have enough with " << bytes_text(memory) << "\n";
  return fits;
}

}  // namespace

bool measure_exported(const std::string& path,
                      const ExportedMemoryOptions& given, std::ostream& out) {
  ExportedMemoryOptions options = given;
  if (options.chunks == 0) options.chunks = options.batch;
  check(options);
  const auto devices = internal::meta_devices(options.partitions);
  const MetaLedger ledger;
  ExportedModel model = [&] {
    const MetaGuard meta;
    ExportedModel loaded = load_exported(
        path, ExportedOptions().max_crossing(options.max_crossing));
    return options.lora ? add_lora(loaded, *options.lora) : loaded;
  }();
  Tensors inputs;
  for (const ExportedTensor& each : model.inputs) {
    inputs.push_back(input_of(each, options));
  }
  const auto size_options = balancing::SizeOptions()
                                .chunks(options.chunks)
                                .param_scale(options.param_scale);
  const std::vector<int64_t> balance =
      inputs.size() == 1
          ? balancing::balance_by_size(options.partitions, model.layers,
                                       inputs[0], size_options)
          : balancing::balance_by_size(options.partitions, model.layers, inputs,
                                       size_options);
  GPipe pipeline(std::move(model.layers), GPipeOptions(balance)
                                              .devices(devices)
                                              .chunks(options.chunks)
                                              .checkpoint(options.checkpoint)
                                              .one_at_a_time(true));
  count_as_parameters(pipeline->parameters());
  count_as_parameters(pipeline->buffers());
  ledger.reset_peaks();
  for (at::Tensor& each : inputs) {
    each = internal::to_meta_device(each, devices.front());
  }
  run_step(pipeline, inputs, model.outputs.size(), options);
  out << options.batch << " rows in " << options.chunks
      << " micro-batches, 1F1B on " << options.partitions << " devices\n";
  const std::vector<double> sums =
      print(balance, lasting_of(pipeline), ledger, options.param_scale, out);
  return options.memory_gib == 0 ||
         print_missing(sums, options.memory_gib, out);
}

}  // namespace gpipe::tools
