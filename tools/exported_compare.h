// Compares an exported program with Python, in one piece and as a pipeline.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

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

}  // namespace gpipe::tools
