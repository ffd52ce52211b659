// The models that all engines of a comparison train (models.py and stages.py in
// C++), and our plan for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

// The sizes of a model and its data.
struct PeerModelSizes {
  int64_t batch = 0;  // rows per mini-batch
  int64_t depth = 0;  // levels of U-Net, L of AmoebaNet, blocks, or layers
  int64_t width = 0;  // channels of U-Net and AmoebaNet, or features
  int64_t side = 0;   // pixels per side of an image, or tokens per sequence
};

// A model with its data and its loss.
struct PeerModel {
  torch::nn::Sequential model;
  at::Tensor input, target;
  std::function<at::Tensor(at::Tensor output, at::Tensor target)> loss;
};

// Returns the names that make_peer_model() accepts: "resnet101" (`depth` and
// `width` are ignored), "unet" (2 convolutions per level), "amoebanetd", "mlp"
// (`depth` pairs of Linear and ReLU) and "transformer" (blocks with 4 heads,
// without an embedding).
std::vector<std::string> peer_model_names();

// Makes the model and the data of a step. Seeds LibTorch's default generator
// with `seed` for the weights and with `seed` + 1 for the data, in the same
// order as models.py. So one seed gives the same values in C++ and in Python.
//
// Throws std::invalid_argument if the name is unknown or if there are no rows,
// and what //models throw for invalid sizes.
PeerModel make_peer_model(const std::string& name, const PeerModelSizes& sizes,
                          uint64_t seed);

// Returns the data and the loss of a step of the language model in `path`, a
// file of tools/export_examples.py, without its layers. Input and target are
// tokens, `batch` rows of `side`, drawn as stages.py draws them. Throws
// what exported_signature() throws.
PeerModel exported_peer_data(const std::string& path, int64_t batch,
                             int64_t side, uint64_t seed);

// Returns the layers per partition of the model in `path` if a partition begins
// at each of these Python modules, such as "model.layers.4". Reads no weights.
//
// Throws std::invalid_argument if there is no cut before such a module, or if
// the modules are not in the order of the layers. Throws what load_exported()
// throws.
std::vector<int64_t> balance_of_modules(
    const std::string& path, const std::vector<std::string>& modules);

// Plans train_step() for two processes with one thread each, without
// recomputes. Writes the plan as JSON to `path`, and prints it to stdout.
//
// `microbatches`: the numbers to choose from.
//
// Throws c10::ValueError if the file cannot be written, and what
// balancing::plan() throws.
void write_peer_plan(const PeerModel& model,
                     const std::vector<int64_t>& microbatches,
                     const std::string& path);

}  // namespace gpipe::benchmarks
