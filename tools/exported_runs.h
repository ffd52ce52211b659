// Training steps of an exported program: compared with Python, and the memory
// that they would take.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "gpipe/gpipe.h"
#include "models/lora.h"

namespace gpipe::tools {

// Runs a training step of the exported program in `model` and writes to `out`
// how its outputs, gradients and buffers differ, a line per run:
// - the whole mini-batch in one layer, compared with Python's step in
//   `reference`, a .pt or .safetensors file of tools/export_examples.py, and
//   with Python's outputs in eval mode if it has them,
// - 2 and 4 partitions with 1F1B and up to 4 micro-batches, cut with
//   `max_crossing` (ExportedOptions), compared with the same micro-batches in
//   Python, or one after the other in one layer if `reference` lacks those of
//   Python. `all_settings`: 2, 3 and 4 partitions, each with fill-drain, 1F1B
//   and ZB-H1, and each without and with recomputing.
//
// Everything runs on the CPU, on one thread per partition. Partitions for which
// there are too few layers are left out. Models with random numbers, such as
// dropout, draw others in micro-batches, so that their lines differ.
//
// If the program cannot be switched to eval mode, `out` gets the reason, and
// only the steps are compared.
//
// `weights`: a folder of transformers whose weights the program gets first, see
// load_hugging_face(); "" for its own ones.
//
// Returns whether no difference is above `tolerance`, relative to the largest
// element of a tensor. Throws c10::ValueError if a file cannot be read, or if
// the tensors of `reference` do not fit the program.
bool compare_exported(const std::string& model, const std::string& reference,
                      int64_t max_crossing, double tolerance, bool all_settings,
                      std::ostream& out, const std::string& weights = {});

// A training step that measure_exported() runs without memory.
struct ExportedMemoryOptions {
  int64_t partitions = 2;    // 1 to 128
  int64_t batch = 0;         // rows of the mini-batch
  int64_t chunks = 0;        // micro-batches; 0: one per row
  int64_t max_crossing = 4;  // ExportedOptions
  int64_t other_sizes = 0;   // sizes that vary beside dimension 0
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  // Bytes per byte of parameters, as in balancing::SizeOptions: the parameter,
  // its gradient and the optimizer's state. At least 2.
  double param_scale = 4;
  // Adapters are trained, and the weights are frozen.
  std::optional<LoraOptions> lora = {};
  double memory_gib = 0;  // of each device, in 2^30 bytes; 0: not known
};

// Cuts the exported program in `path` with balancing::balance_by_size(), runs a
// step of 1F1B on meta devices, and writes a line per device to `out`: layers,
// and the bytes of weights, gradients, the optimizer's state and activations.
//
// The bytes of activations are the peak of all tensors of the step that are
// neither weights nor gradients: those kept for a backward, those that pass
// between partitions, and temporary ones. They are the bytes that a CPU's
// tensors would take. The loss is the sum of all outputs. The values of weights
// are not read, so that the file may have been exported on the meta device.
//
// If the memory of the devices is known, also writes which of them have too
// little, and how much is missing. Returns whether all have enough.
//
// Throws c10::ValueError if an option is out of its range, if an input has
// sizes that vary and `other_sizes` is 0, if the program has fewer layers than
// partitions, and what load_exported() throws.
bool measure_exported(const std::string& path,
                      const ExportedMemoryOptions& options, std::ostream& out);

}  // namespace gpipe::tools
