// The options of models/lora.h.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe {

// The options of add_lora(). Each setter returns the options.
struct LoraOptions {
  // The rank of the adapters.
  TORCH_ARG(int64_t, rank) = 8;
  // The adapter's output is scaled by alpha / rank.
  TORCH_ARG(double, alpha) = 16;
  // The probability of dropout on the adapter's input, in training.
  TORCH_ARG(double, dropout) = 0;
  // Scales by alpha / sqrt(rank) instead (rsLoRA).
  TORCH_ARG(bool, rank_stabilized) = false;
  // Which linear layers get adapters: last parts of module names ("q_proj",
  // "self_attn.q_proj"), as in PEFT. Each must fit a module.
  TORCH_ARG(std::vector<std::string>, targets);
  // The module of an exported program that holds the whole model of Hugging
  // Face, if the program has one: "model" for a module whose child `model` is a
  // LlamaForCausalLM. Names in files begin after it, so that they are PEFT's.
  TORCH_ARG(std::string, wrapper);
};

}  // namespace gpipe
