#include "gpipe/gpipe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "gpipe/base/devices.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/step/pipeline.h"
#include "gpipe/skip/skippable.h"

namespace gpipe {
namespace {

std::vector<c10::Device> choose_devices(std::vector<c10::Device> devices,
                                        std::size_t partitions) {
  if (devices.empty()) {
    devices = all_devices();
    if (devices.front().is_cpu()) devices.assign(partitions, devices.front());
  }
  TORCH_CHECK_INDEX(devices.size() >= partitions,
                    "too few devices to hold given partitions (devices: ",
                    devices.size(), ", partitions: ", partitions,
                    "); give fewer partitions, or name a device several times "
                    "in GPipeOptions::devices");
  devices.erase(devices.begin() + static_cast<std::ptrdiff_t>(partitions),
                devices.end());
  for (c10::Device& device : devices) device = internal::with_index(device);
  return devices;
}

std::vector<std::string> names_of(const std::vector<c10::Device>& devices) {
  std::vector<std::string> names;
  for (const c10::Device& device : devices) names.push_back(device.str());
  return names;
}

// Throws c10::TypeError if a layer with a pipeline inside it would have to be
// moved.
void check_nested(const std::vector<internal::Partition>& partitions) {
  for (const internal::Partition& partition : partitions) {
    for (const internal::Layer& layer : partition.layers) {
      for (const auto& module : layer.module.ptr()->modules()) {
        TORCH_CHECK_TYPE(
            !std::dynamic_pointer_cast<GPipeImpl>(module) ||
                !internal::is_off(*layer.module.ptr(), partition.device),
            "layer '", layer.name, "' holds a GPipe and cannot be moved to ",
            partition.device, ", the device of partition ", partition.index,
            "; create the inner GPipe and the layer's other tensors on that "
            "device, or choose the layer's device in GPipeOptions::devices");
      }
    }
  }
}

}  // namespace

GPipeImpl::GPipeImpl(torch::nn::Sequential module, GPipeOptions options)
    : PipelineModule("GPipe", "GPipeOptions::devices"),
      options_(std::move(options)) {
  TORCH_CHECK_VALUE(!module.is_empty(), "the module is null");
  set_source(module);
  internal::check_chunks(options_.chunks());
  internal::check_unsplit(options_.unsplit());
  internal::check_layers_differ(module);
  verify_skippables(module);
  internal::check_balance(options_.balance(), module->size());
  internal::check_stages_per_rank(options_.balance().size(),
                                  options_.stages_per_rank());
  const std::size_t stages = options_.balance().size();
  const std::size_t ranks = stages / options_.stages_per_rank();
  rank_of_stage_ = place_stages(static_cast<int>(stages),
                                static_cast<int>(ranks), options_.placement());
  const auto rank_devices = choose_devices(options_.devices(), ranks);
  const int threads =
      internal::worker_threads(options_.threads_per_partition(),
                               internal::share_of_threads(rank_devices));
  std::vector<c10::Device> devices;
  for (const int rank : rank_of_stage_) devices.push_back(rank_devices[rank]);
  options_.devices(std::move(devices));

  const std::vector<internal::Layer> layers = internal::layers_of(module);
  std::vector<internal::Partition> partitions =
      internal::partition(layers, options_.balance(), options_.devices());
  internal::check_sharing(partitions, names_of(options_.devices()), "device");
  check_nested(partitions);
  if (options_.deferred_batch_norm()) internal::defer_norms(partitions);

  // train() changes all children, but the layers must keep their own modes. So
  // this comes before they are registered.
  train(module->is_training());
  internal::move_layers(partitions);
  for (const internal::Layer& layer : layers) add_layer(layer);
  if (partitions.empty()) return;
  pipeline_ = std::make_shared<internal::Pipeline>(
      std::move(partitions), options_.unsplit(), rank_of_stage_, rank_devices,
      threads, options_.one_at_a_time());
}

const torch::Device& GPipeImpl::device() const {
  static const torch::Device without_layers(torch::kCPU);
  return devices().empty() ? without_layers : devices().front();
}

internal::Batch GPipeImpl::run(internal::Batch input) {
  if (pipeline_) pipeline_->forget_failure();
  check_layers();
  if (!pipeline_) return input;
  internal::check_input(input, options_.devices().front(), options_.unsplit());
  // Keep both alive if the last GPipe handle is dropped during the call.
  const auto self = weak_from_this().lock();
  const auto pipeline = pipeline_;
  return pipeline->forward(input, options_.chunks(), [this] {
    return is_training() ? checkpoint() : Checkpoint::kNever;
  });
}

int64_t GPipeImpl::count_microbatches(const internal::Batch& input) {
  return internal::count_microbatches(input, chunks(), options_.unsplit());
}

StepResult GPipeImpl::run_step(internal::StepArguments given) {
  const auto pipeline = pipeline_;
  TORCH_CHECK_VALUE(pipeline, "a pipeline without layers cannot be trained");
  given.check = [&] {
    check_layers();
    internal::check_input(given.input, device(), options_.unsplit());
  };
  return pipeline->train(given);
}

double GPipeImpl::clip_grad_norm_(double max_norm, double norm_type) {
  return internal::clip_grad_norm(parameters(), max_norm, norm_type);
}

std::optional<Failure> GPipeImpl::last_failure() const {
  return pipeline_ ? pipeline_->last_failure() : std::nullopt;
}

void GPipeImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::GPipe(balance=" << c10::IntArrayRef(balance())
         << ", devices=" << c10::ArrayRef<c10::Device>(devices())
         << ", chunks=" << chunks()
         << ", checkpoint=" << to_string(checkpoint()) << ")";
}

}  // namespace gpipe
