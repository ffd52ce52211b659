#include "training/program/lora_setup.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <filesystem>
#include <utility>

#include "gpipe/base/text.h"
#include "models/lora.h"
#include "models/weights/safetensors.h"
#include "training/data/checksum.h"
#include "training/data/random.h"

namespace gpipe::train_program {
namespace {

constexpr char kFanInFanOut[] = "fan_in_fan_out";

LoraOptions lora_options(const Options& options) {
  return LoraOptions()
      .rank(options.lora_rank)
      .alpha(options.lora_alpha)
      .dropout(options.lora_dropout)
      .rank_stabilized(options.lora_rank_stabilized)
      .targets(split_list(options.lora_targets))
      .wrapper(options.lora_wrapper);
}

}  // namespace

Options with_adapter_options(Options options) {
  TORCH_CHECK_VALUE(options.lora_rank >= 0, "--lora_rank=", options.lora_rank,
                    ": must be at least 1, or 0 to train the weights");
  TORCH_CHECK_VALUE(
      options.save_weights.empty() ||
          (options.lora_rank == 0 && options.adapter.empty()),
      "--save_weights=", options.save_weights,
      ": adapters are trained, and the weights do not change; merge "
      "RUN_DIR/adapter into them with tools:convert_weights --merge_lora");
  if (options.lora_rank > 0) {
    TORCH_CHECK_VALUE(!options.lora_targets.empty(),
                      "--lora_rank=", options.lora_rank,
                      " needs --lora_targets, such as q_proj,v_proj");
    return options;
  }
  TORCH_CHECK_VALUE(
      options.lora_targets.empty(), "--lora_targets=", options.lora_targets,
      options.adapter.empty()
          ? ": needs --lora_rank, which switches adapters on"
          : ": the targets are those of --adapter unless --lora_rank is given");
  if (options.adapter.empty()) return options;
  const LoraOptions given = read_lora_options(options.adapter);
  options.lora_rank = given.rank();
  options.lora_alpha = given.alpha();
  options.lora_dropout = given.dropout();
  options.lora_rank_stabilized = given.rank_stabilized();
  options.lora_targets = absl::StrJoin(given.targets(), ",");
  return options;
}

void add_adapters(torch::nn::Sequential layers, const Options& options) {
  if (!trains_adapters(options)) return;
  torch::manual_seed(data::mix_seed(options.seed, 2));
  add_lora(layers, lora_options(options));
}

void load_adapter(torch::nn::Sequential layers, const Options& options,
                  bool whole) {
  if (!options.adapter.empty()) load_lora(options.adapter, *layers, whole);
}

LayerBuilder adapted_layers(const ExportedFile& file, bool reads_weights,
                            std::function<void(ExportedModel&)> load_part,
                            const Options& options) {
  return [&file, reads_weights, load_part = std::move(load_part), options](
             int64_t first, int64_t count) {
    ExportedModel part = file.read(first, count, reads_weights);
    if (load_part) load_part(part);
    add_adapters(part.layers, options);
    load_adapter(part.layers, options, /*whole=*/false);
    return part.layers;
  };
}

uint32_t adapter_checksum(const Options& options) {
  if (options.adapter.empty()) return 0;
  uint32_t sum = 0;
  for (const auto& each :
       read_safetensors(options.adapter + "/adapter_model.safetensors")
           .tensors) {
    sum = data::checksum_of(each.value(), data::checksum_of(each.key(), sum));
  }
  return sum;
}

void save_adapter(Engine& engine, const Options& options) {
  std::string mine;
  if (engine.replica() == 0) {
    mine = safetensors_bytes(
        lora_state_dict(engine.module()),
        {{kFanInFanOut, lora_fan_in_fan_out(engine.module()) ? "1" : ""}});
  }
  StateDict all;
  bool fan_in_fan_out = false;
  for (const std::string& each : engine.all_gather(mine)) {
    if (each.empty() || engine.rank() != 0) continue;
    const Safetensors part = parse_safetensors(each.data(), each.size());
    fan_in_fan_out |= !part.metadata.at(kFanInFanOut).empty();
    for (const auto& item : part.tensors) all.insert(item.key(), item.value());
  }
  if (engine.rank() != 0) return;
  const std::filesystem::path folder(options.run_dir);
  save_lora((folder / "adapter").string(), all, lora_options(options),
            fan_in_fan_out);
}

}  // namespace gpipe::train_program
