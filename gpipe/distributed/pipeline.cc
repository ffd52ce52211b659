#include "gpipe/distributed/pipeline.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <map>
#include <ostream>
#include <set>
#include <tuple>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/channel/device_transport.h"
#include "gpipe/distributed/runner/runner.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/skip/skippable.h"

namespace gpipe {
namespace {

internal::RankLayout make_layout(const DistributedOptions& options,
                                 const internal::Communicator& world) {
  const auto stages = static_cast<int>(options.balance().size());
  internal::check_stages_per_rank(options.balance().size(),
                                  options.stages_per_rank());
  internal::RankLayout layout;
  // As int64_t: a number that no int holds must not pass for another one.
  layout.ranks = static_cast<int>(stages / options.stages_per_rank());
  TORCH_CHECK_VALUE(options.data_parallel() > 0 &&
                        options.data_parallel() <= world.size() &&
                        world.size() == layout.ranks * options.data_parallel(),
                    "the world has ", world.size(), " ranks, but ",
                    options.data_parallel(), " x ", layout.ranks,
                    " are needed (data_parallel: ", options.data_parallel(),
                    ", partitions: ", stages,
                    ", stages_per_rank: ", options.stages_per_rank(),
                    "); start as many processes, or choose "
                    "another balance");
  layout.replicas = static_cast<int>(options.data_parallel());
  layout.rank = world.rank() % layout.ranks;
  layout.replica = world.rank() / layout.ranks;
  layout.rank_of_stage =
      place_stages(stages, layout.ranks, options.placement());
  return layout;
}

c10::Device choose_device(const std::optional<c10::Device>& asked,
                          int local_rank) {
  if (asked) return internal::with_index(*asked);
  const auto accelerator = at::getAccelerator();
  const int count = accelerator ? at::accelerator::deviceCount() : 0;
  if (count == 0) return c10::Device(c10::kCPU);
  return c10::Device(*accelerator,
                     static_cast<c10::DeviceIndex>(local_rank % count));
}

internal::Terms terms_of(const DistributedOptions& options) {
  return {
      {"the balance", c10::str(c10::IntArrayRef(options.balance()))},
      {"data_parallel", std::to_string(options.data_parallel())},
      {"stages_per_rank", std::to_string(options.stages_per_rank())},
      {"the placement", options.placement() == Placement::kV ? "V" : "loop"},
      {"chunks", std::to_string(options.chunks())},
      {"unsplit", c10::str(c10::IntArrayRef(options.unsplit()))},
      {"the checkpoint mode", to_string(options.checkpoint())},
      {"the transport", to_string(options.transfers())},
      {"shard_optimizer", options.shard_optimizer() ? "true" : "false"},
      {"collective_sums", options.collective_sums() ? "true" : "false"},
      {"deferred_batch_norm",
       options.deferred_batch_norm() ? "true" : "false"}};
}

// Returns one line that tells the layer from others: its type, the number of
// its elements, their dtypes, and a checksum of names, dtypes and sizes.
std::string describe(const torch::nn::Module& layer) {
  std::string tensors;
  std::set<std::string> types;
  int64_t elements = 0;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    elements += tensor.numel();
    types.insert(c10::toString(tensor.scalar_type()));
    tensors += c10::str(name, " ", tensor.scalar_type(), tensor.sizes(), ";");
  };
  for (const auto& each : layer.named_parameters()) {
    add(each.key(), each.value());
  }
  for (const auto& each : layer.named_buffers()) add(each.key(), each.value());
  std::string text = c10::str(layer.name(), " with ", elements, " elements");
  for (const std::string& type : types) {
    text += (type == *types.begin() ? " of " : " and ") + type;
  }
  return c10::str(
      text, " (",
      internal::crc32c(tensors.data(), static_cast<int64_t>(tensors.size())),
      ")");
}

// Returns the first layer and the number of layers of each partition.
std::vector<std::pair<int64_t, int64_t>> ranges_of(
    const std::vector<int64_t>& balance) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t first = 0;
  for (const int64_t count : balance) {
    ranges.emplace_back(first, count);
    first += count;
  }
  return ranges;
}

// Encodes the names and the skips of layers.
std::string encode_layers(const std::vector<internal::Layer>& layers) {
  std::string text;
  const auto add = [&](const std::vector<SkipKey>& keys) {
    text += internal::pack(static_cast<uint64_t>(keys.size()));
    for (const SkipKey& key : keys) {
      text += internal::pack(key.ns.number(), key.name);
    }
  };
  for (const internal::Layer& layer : layers) {
    text += internal::pack(layer.index, layer.name);
    add(layer.skips.stash);
    add(layer.skips.pop);
  }
  return text;
}

void decode_layers(const std::string& text,
                   std::vector<internal::Layer>& layers) {
  std::size_t at = 0;
  const auto take_keys = [&](std::vector<SkipKey>& keys) {
    auto left = internal::take<uint64_t>(text, at);
    for (; left > 0 && at < text.size(); --left) {
      const auto ns = Namespace::of_number(internal::take<uint64_t>(text, at));
      keys.push_back({ns, internal::take_text(text, at)});
    }
  };
  while (at < text.size()) {
    internal::Layer& layer = layers.at(internal::take<int64_t>(text, at));
    layer.name = layer.skips.layer = internal::take_text(text, at);
    take_keys(layer.skips.stash);
    take_keys(layer.skips.pop);
  }
  TORCH_CHECK(at == text.size(),
              "the names of the layers are cut off; run the same gpipe on all "
              "ranks");
}

// Throws c10::ValueError if two layers have the same name.
void check_names(const std::vector<internal::Layer>& layers) {
  std::map<std::string, int64_t> first_with;
  for (const internal::Layer& layer : layers) {
    const auto [found, is_new] = first_with.emplace(layer.name, layer.index);
    TORCH_CHECK_VALUE(is_new, "the builder gave the name '", layer.name,
                      "' to the layers ", found->second, " and ", layer.index,
                      " of the model; give each layer its own name, or none");
  }
}

constexpr char kMaking[] = "making the pipeline";

}  // namespace

DistributedPipelineImpl::DistributedPipelineImpl(torch::nn::Sequential module,
                                                 DistributedOptions options,
                                                 std::shared_ptr<World> world)
    : PipelineModule("DistributedPipeline", "DistributedOptions::device"),
      options_(std::move(options)),
      world_(internal::communicator_of(world)) {
  world_->reporting_failure(kMaking, [&] { take(module); });
}

DistributedPipelineImpl::DistributedPipelineImpl(LayerBuilder build,
                                                 DistributedOptions options,
                                                 std::shared_ptr<World> world)
    : PipelineModule("DistributedPipeline", "DistributedOptions::device"),
      options_(std::move(options)),
      world_(internal::communicator_of(world)) {
  world_->reporting_failure(kMaking, [&] { build_own(build); });
}

void DistributedPipelineImpl::take(const torch::nn::Sequential& module) {
  TORCH_CHECK_VALUE(!module.is_empty(), "the module is null");
  set_source(module);
  const internal::Tags tags(world_->next_channel());
  internal::Terms terms = terms_of(options_);
  terms.emplace_back("the model", "a Sequential");
  terms.emplace_back("the number of layers", std::to_string(module->size()));
  int64_t number = 0;
  for (const auto& child : module->named_children()) {
    terms.emplace_back(c10::str("the name of layer ", number++), child.key());
    terms.emplace_back("layer '" + child.key() + "'", describe(*child.value()));
  }
  internal::agree(*world_, tags.words, terms);

  internal::check_layers_differ(module);
  verify_skippables(module);
  internal::check_balance(options_.balance(), module->size());
  layout_ = make_layout(options_, *world_);
  train(module->is_training());
  std::vector<internal::Layer> layers = internal::layers_of(module);
  const auto ranges = ranges_of(options_.balance());
  {
    // All layers are still present here, so sharing across ranks can be
    // checked.
    std::vector<std::string> places;
    std::vector<c10::Device> devices;
    for (std::size_t s = 0; s < ranges.size(); ++s) {
      places.push_back("rank " + std::to_string(layout_.rank_of_stage[s]));
      devices.emplace_back(c10::kCPU);
    }
    internal::check_sharing(
        internal::partition(layers, options_.balance(), devices), places,
        "rank");
  }
  internal::ForeignParameters foreign;
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    if (layout_.has(static_cast<int>(s))) continue;
    for (int64_t k = 0; k < ranges[s].second; ++k) {
      internal::Layer& layer = layers[ranges[s].first + k];
      for (const auto& named : layer.module.ptr()->named_parameters()) {
        foreign.add(layer.name + "." + named.key(), layout_.rank_of_stage[s],
                    named.value());
      }
      layer.module = torch::nn::AnyModule();
    }
  }
  build(std::move(layers), std::move(foreign));
}

void DistributedPipelineImpl::build_own(const LayerBuilder& build_layers) {
  const internal::Tags tags(world_->next_channel());
  TORCH_CHECK_VALUE(build_layers, "the builder is empty");
  internal::Terms terms = terms_of(options_);
  terms.emplace_back("the model", "a LayerBuilder");
  internal::agree(*world_, tags.words, terms);
  internal::check_positive(options_.balance());
  layout_ = make_layout(options_, *world_);
  std::vector<internal::Layer> layers(size());
  for (int64_t k = 0; k < size(); ++k) layers[k].index = k;
  const auto ranges = ranges_of(options_.balance());
  std::vector<internal::Layer> own;
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    if (!layout_.has(static_cast<int>(s))) continue;
    const auto [first, count] = ranges[s];
    const torch::nn::Sequential part = build_layers(first, count);
    TORCH_CHECK_VALUE(
        !part.is_empty() && static_cast<int64_t>(part->size()) == count,
        "the builder was asked for ", count, " layers from layer ", first,
        " on and returned ", part.is_empty() ? 0 : part->size());
    if (own.empty()) train(part->is_training());
    for (internal::Layer& layer : internal::layers_of(part)) {
      const bool is_numbered = layer.name == std::to_string(layer.index);
      layer.index += first;
      if (is_numbered) layer.name = std::to_string(layer.index);
      own.push_back(layer);
      layers[layer.index].module = std::move(layer.module);
    }
  }
  const std::string action = "exchanging the names and skips of the layers";
  for (const std::string& text :
       internal::all_gather(*world_, layout_.pipeline(), tags.words,
                            encode_layers(own), action)) {
    decode_layers(text, layers);
  }
  internal::meet(*world_, layout_.pipeline(), tags.words, action);
  check_names(layers);
  std::vector<internal::LayerSkips> skips;
  for (const internal::Layer& layer : layers) skips.push_back(layer.skips);
  internal::verify_skips(skips);
  build(std::move(layers), {});
}

void DistributedPipelineImpl::build(std::vector<internal::Layer> layers,
                                    internal::ForeignParameters foreign) {
  internal::check_chunks(options_.chunks());
  internal::check_unsplit(options_.unsplit());
  const int threads = internal::worker_threads(options_.threads_per_partition(),
                                               at::get_num_threads());
  device_ = choose_device(options_.device(), world_->options().local_rank);
  const std::vector<c10::Device> devices(options_.balance().size(), device_);
  std::vector<internal::Partition> partitions =
      internal::partition(std::move(layers), options_.balance(), devices);
  if (options_.deferred_batch_norm()) internal::defer_norms(partitions);
  internal::move_layers(partitions);
  for (const internal::Partition& part : partitions) {
    for (const internal::Layer& layer : part.layers) add_layer(layer);
  }
  const internal::Tags tags(world_->next_channel());
  std::tie(transfers_, transfers_reason_) = internal::agree_on_transfers(
      *world_, tags.words, device_, options_.transfers());
  runner_ = std::make_shared<internal::Runner>(
      world_, std::move(partitions), layout_, device_, threads, transfers_,
      std::move(foreign), options_.unsplit(), options_.shard_optimizer(),
      options_.collective_sums());
}

int64_t DistributedPipelineImpl::count_microbatches(
    const internal::Batch& input) {
  return runner()->from_first([&]() -> int64_t {
    try {
      return internal::count_microbatches(input, chunks(), options_.unsplit());
    } catch (const c10::Error&) {
      return 1;  // the step refuses the input, on all ranks
    }
  });
}

StepResult DistributedPipelineImpl::run_step(internal::StepArguments given) {
  given.check = [&] {
    check_layers();
    if (!layout_.has_first()) return;
    // Input on the CPU is copied by micro-batch. Input on another accelerator
    // is refused: nothing would make the copy wait for work still running
    // there.
    internal::check_device(given.input, {device_, torch::kCPU}, "device()");
    internal::check_rows(given.input, options_.unsplit());
  };
  return runner()->step(given);
}

double DistributedPipelineImpl::clip_grad_norm_(double max_norm,
                                                double norm_type) {
  return runner()->clip_grad_norm(max_norm, norm_type);
}

std::vector<at::Tensor> DistributedPipelineImpl::optimizer_parameters() const {
  auto shards = runner()->own_shards();
  return shards ? std::move(*shards) : PipelineModule::optimizer_parameters();
}

void DistributedPipelineImpl::share_parameters() {
  runner()->share_parameters();
}

void DistributedPipelineImpl::zero_grad(bool set_to_none) {
  PipelineModule::zero_grad(set_to_none);
  runner()->zero_shard_grads(set_to_none);
}

bool DistributedPipelineImpl::any(bool here) { return runner()->any(here); }

std::optional<Failure> DistributedPipelineImpl::last_failure() const {
  return runner()->last_failure();
}

void DistributedPipelineImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::DistributedPipeline(balance=" << c10::IntArrayRef(balance())
         << ", rank=" << layout_.rank << "/" << layout_.ranks
         << ", replica=" << layout_.replica << "/" << layout_.replicas
         << ", device=" << device_ << ", transfers=" << to_string(transfers_)
         << ", chunks=" << options_.chunks()
         << ", checkpoint=" << to_string(options_.checkpoint()) << ")";
}

}  // namespace gpipe
