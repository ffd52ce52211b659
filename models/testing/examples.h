// The models that make.py writes, training steps with them, and copies of these
// models with changed records.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/exported/comparison.h"
#include "models/exported/exported.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"

namespace gpipe::testing {

// Returns whether this machine and this LibTorch computed the tensors of a file
// with this metadata, so that the bits must be equal.
bool is_made_here(const SafetensorsMetadata& metadata);

// Returns the path of NAME in models/exported/testdata, or in one of its
// folders.
std::string example_file(const std::string& name);

using exported::ExportedStep;
using exported::loss_of;
using exported::step_of;

// The tensors of NAME.safetensors, see models/exported/testdata/make.py.
struct Example {
  // What Python computed in training. Other machines have other kernels.
  ExportedStep python() const { return {outputs, grads, buffers}; }
  double tolerance() const { return made_here ? 0 : 1e-4; }
  ExportedModel load(int64_t max_crossing) const {
    return load_exported(path, ExportedOptions().max_crossing(max_crossing));
  }

  std::string path;  // of NAME.pt2
  std::vector<at::Tensor> inputs, outputs, weights, evaluated;
  StateDict grads, buffers;  // by Python's names
  bool made_here = false;    // see is_made_here()
};
Example read_example(const std::string& name);

// The names of the examples that run in training, in eval() and on the meta
// device. Others cannot: "counted" reads values of tensors as numbers, "noisy"
// and "alternating" have no eval(), and "dropped" has other gradients in
// Python. "quiet" is the model of "noisy", exported in eval mode.
const std::vector<std::string>& example_names();

// Calls `module`, a Sequential or a GPipe. Examples with one input have one
// output, the others have several.
template <typename Module>
std::vector<at::Tensor> call(Module& module,
                             const std::vector<at::Tensor>& inputs) {
  return exported::call(module, inputs, inputs.size());
}

// Runs the training step of make.py.
ExportedStep training_step(ExportedModel& model, const Example& example);

// Returns "" if both have the same bits in all outputs, gradients and buffers,
// else the first difference. `tolerance`: of each element, relative to the
// largest one of its output, of all gradients, or of all buffers; 0 for equal
// bits.
std::string difference(const ExportedStep& a, const ExportedStep& b,
                       double tolerance = 0);

// Changes the content of the record `name`. Returns false to leave it out.
using EditRecord =
    std::function<bool(const std::string& name, std::string& content)>;

// Copies the archive `from` to the file `to`, with each record edited.
void edit_archive(const std::string& from, const std::string& to,
                  const EditRecord& edit);

// Copies the archive with the first `old_text` of the program's JSON replaced
// by `new_text`. Throws c10::Error if the JSON does not contain it.
void edit_program(const std::string& from, const std::string& to,
                  const std::string& old_text, const std::string& new_text);

}  // namespace gpipe::testing
