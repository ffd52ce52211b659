// The adapters that --lora_rank or --adapter ask for.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>

#include "gpipe/distributed/pipeline.h"
#include "models/exported/exported.h"
#include "training/program/engine.h"
#include "training/program/options.h"

namespace gpipe::train_program {

// Returns `options` with rank, targets, alpha and dropout of the folder
// Options::adapter, unless Options::lora_rank is set. Throws c10::ValueError,
// which names the flag, if the options of adapters do not fit together or the
// folder cannot be read.
Options with_adapter_options(Options options);

// Returns whether adapters are trained instead of weights. `options`: from
// with_adapter_options().
inline bool trains_adapters(const Options& options) {
  return options.lora_rank > 0;
}

// Adds adapters to a model, or to some layers of a .pt2 file. Initial values
// depend on the seed, not on the cut. Does nothing unless adapters are trained.
// Throws what add_lora() throws.
void add_adapters(torch::nn::Sequential layers, const Options& options);

// Loads the values of Options::adapter, if it is set. `whole`: `layers` are the
// whole model, so that they must have all adapters of the folder. Throws what
// load_lora() throws.
void load_adapter(torch::nn::Sequential layers, const Options& options,
                  bool whole);

// Returns a function that reads layers of `file`, loads their weights by
// `load_part` unless that is empty, and adds and loads their adapters.
// `reads_weights`: whether the weights in `file` are read. `file` must outlive
// the function. The function throws what these steps throw.
LayerBuilder adapted_layers(const ExportedFile& file, bool reads_weights,
                            std::function<void(ExportedModel&)> load_part,
                            const Options& options);

// Returns the checksum of the tensors in Options::adapter; 0 without it.
uint32_t adapter_checksum(const Options& options);

// Writes the adapters of all processes in PEFT's format to RUN_DIR/adapter.
// All processes call this.
void save_adapter(Engine& engine, const Options& options);

}  // namespace gpipe::train_program
