#include "tools/exported_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "balancing/balancing.h"
#include "gpipe/base/text.h"
#include "gpipe/meta.h"
#include "gpipe/meta/ledger.h"
#include "gpipe/schedule.h"
#include "models/exported/exported.h"

namespace gpipe::tools {
namespace {

using Tensors = std::vector<at::Tensor>;
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
  const auto of_one = [](const at::Tensor& output, const at::Tensor&) {
    return sum_of({output});
  };
  const auto of_several = [](const Tensors& output, const at::Tensor&) {
    return sum_of(output);
  };
  const auto train = [&](const auto& input) {
    if (outputs == 1) {
      pipeline->train_step(input, target, of_one, schedule);
    } else {
      pipeline->train_step<Tensors>(input, target, of_several, schedule);
    }
  };
  if (inputs.size() == 1) {
    train(inputs[0]);
  } else {
    train(inputs);
  }
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
