// LoRA: trains small adapters beside the frozen weights of a model.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>

#include "models/exported/exported.h"
#include "models/lora_options.h"
#include "models/weights/state_dict.h"

namespace gpipe {

// Fine-tunes a program that Python exported, and writes an adapter that PEFT
// loads:
//
//   auto options = gpipe::LoraOptions().rank(8).alpha(16).targets(
//       {"q_proj", "v_proj"});
//   auto model = gpipe::add_lora(gpipe::load_exported("llama.pt2"), options);
//   gpipe::GPipe pipeline(model.layers, ...);
//   torch::optim::AdamW optimizer(pipeline->optimizer_parameters());
//   ...                                      // train_step()
//   gpipe::save_lora("adapter", *pipeline, options);
//
// and in Python: peft.PeftModel.from_pretrained(model, "adapter").
//
// Loads an adapter of PEFT, and adds it to the weights:
//
//   auto model = gpipe::add_lora(gpipe::load_exported("llama.pt2"),
//                                gpipe::read_lora_options("adapter"));
//   gpipe::load_lora("adapter", *model.layers);
//   gpipe::merge_lora(*model.layers);
//   gpipe::write_safetensors("merged.safetensors", model.state_dict());
//
// In several processes, each rank adds adapters to its own layers:
//
//   gpipe::DistributedPipeline pipeline(
//       [&](int64_t first, int64_t count) {
//         torch::manual_seed(1);
//         return gpipe::add_lora(gpipe::load_exported(path, first, count),
//                                options).layers;
//       }, ...);
//
// The result of an adapted layer with the weight W is W x + s B A dropout(x),
// where A has the size [rank, inputs], B has [outputs, rank], and s is
// alpha / rank. Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language
// Models", 2021. Operators, their order and the initial values are those of
// Python's PEFT, so that bits agree where the operators of the model do.

// Threads: any thread may call a function while no other thread uses the
// modules, dicts or folders that it is given.

// Adds adapters to the linear layers of `layers`, freezes all other parameters
// (requires_grad is false), and returns `layers`. The modules themselves
// change, so that a GPipe and an optimizer must be made afterwards.
//
// Adapted are torch::nn::Linear modules anywhere in the layers, and the linear
// nodes of exported programs, see below. An adapter has the dtype and device of
// the weight, or float32 if the weight has 16 bits. A is uniform as in
// torch::nn::Linear, and rounded to the weight's dtype; B is 0. The values are
// drawn from LibTorch's default generator in the order of the modules.
//
// A Linear that other modules hold as a typed member is reached, because its
// weight is recognized by operators. Not reached are products that the outer
// module computes itself with another operator than torch::nn::functional::
// linear(), torch::linear(), torch::addmm() and torch::matmul() with
// weight.t(). A module with adapters cannot be cloned, and cannot be placed by
// gpipe/placement.h. Read its weights with load_state_dict(), not with
// torch::load().
//
// Throws c10::ValueError, and changes nothing, if
// - a target fits no module, or a module that is not linear, or whose weight a
//   branch or a loop of an exported program uses, too,
// - a module has an adapter already,
// - two torch::nn::Linear modules, one of them a target, have the same weight,
//   or
// - an option is out of its range.
torch::nn::Sequential add_lora(torch::nn::Sequential layers,
                               const LoraOptions& options);

// The same for an exported program, also for a part of its layers. Targets are
// names of Python's modules. A module is linear if it calls aten.linear, addmm,
// mm or matmul with its weight; that includes the Conv1D of GPT-2. Each module
// of tied weights gets its own adapter. The adapter belongs to the layer that
// has the weight. If other layers call the module, its A and B pass to them as
// skip tensors, as the weight does.
//
// The values of all adapters of the program are drawn, also of those in other
// layers, so that a seed gives the same adapters in each cut. state_dict() is
// still that of the base.
ExportedModel add_lora(ExportedModel model, const LoraOptions& options);

// Returns A and B of all adapters in `module` by PEFT's names:
// "base_model.model.layers.0.self_attn.q_proj.lora_A.weight" and
// "....lora_B.weight". `module`: a Sequential, a GPipe, or a
// DistributedPipeline, which has the adapters of its own layers. The names are
// those of the modules when add_lora() was called; of a torch::nn::Linear whose
// layer has been named anew since, as a LayerBuilder's layers are, its name
// now. The tensors are detached and share the module's memory. Throws
// c10::ValueError if two adapters have one name.
StateDict lora_state_dict(const torch::nn::Module& module);

// Returns whether an adapter of `module` belongs to a base weight of the size
// [inputs, outputs], as in GPT-2. PEFT calls this fan_in_fan_out.
bool lora_fan_in_fan_out(const torch::nn::Module& module);

// Writes the adapters of `module` in PEFT's format to the folder, which is made
// if it does not exist: adapter_model.safetensors and adapter_config.json. Each
// file appears only when it is complete, and never beside another one that was
// saved with other options. `options`: those of add_lora().
// Throws c10::ValueError if the module has no adapters, or adapters with other
// options, and c10::Error if a file cannot be written.
void save_lora(const std::string& folder, const torch::nn::Module& module,
               const LoraOptions& options);
// The same for a dict that lora_state_dict() returned, such as one that was
// gathered from several ranks. `fan_in_fan_out`: see lora_fan_in_fan_out().
void save_lora(const std::string& folder, const StateDict& adapters,
               const LoraOptions& options, bool fan_in_fan_out = false);

// Reads adapter_config.json of a folder. Throws c10::ValueError with the path
// if the file cannot be read, is damaged, or asks for more than LoraOptions
// has, such as DoRA.
LoraOptions read_lora_options(const std::string& folder);

// Copies the values of a folder in PEFT's format into the adapters of `module`,
// in place. The copies of base weights and biases that PEFT writes as
// "....base_layer.weight" and the like are ignored. Throws one c10::ValueError
// with the path, and changes nothing, if a file cannot be read or is damaged,
// if rank or scale differ from those of the module, or if names are missing,
// unexpected, or have other shapes. `strict`: false ignores adapters of the
// folder that `module` does not have, for the layers of one rank.
void load_lora(const std::string& folder, torch::nn::Module& module,
               bool strict = true);

// Adds each adapter in `module` to its base weight, as PEFT's merge() does, and
// removes it. The weights stay frozen. Other modules that use the same weight
// (tied weights) see the sum, as in PEFT.
void merge_lora(torch::nn::Module& module);

// Adds the adapters of a folder in PEFT's format to the weights of a model of
// Hugging Face, without the model: to "layers.0.mlp.up_proj.weight" the adapter
// "base_model.model.layers.0.mlp.up_proj". The names of one may have a prefix
// that the other lacks, such as GPT-2's "transformer.". An adapter of an output
// layer whose weight is that of the input embedding, and stored once, is added
// there. A square weight has the direction of others with the same last name,
// or that of fan_in_fan_out if there are none. The changed weights are new
// tensors. Throws c10::ValueError with the path, and changes nothing, if a file
// cannot be read or is damaged, or if an adapter has no weight or another size.
void merge_lora(const std::string& folder, StateDict& weights);

}  // namespace gpipe
