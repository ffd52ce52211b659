// Gets and sets a module's parameters and buffers by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace gpipe {

// A dictionary of names and tensors in order. insert() throws c10::Error if the
// name exists. operator[] throws c10::Error if the name does not exist; find()
// returns null.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// Returns the same names and tensors as Python's Module.state_dict(), in the
// same order: a module's own parameters, its own buffers, then those of its
// children. An example of a name is "layer1.0.conv1.weight". Undefined
// parameters and buffers (a bias that is switched off) are left out. A tensor
// that is registered twice appears twice.
//
// The tensors are detached and share the module's memory, so they change with
// the module. Call clone() for a copy.
//
// Threads: may be called from any thread while no other thread changes the
// module.
StateDict state_dict(const torch::nn::Module& module);

// Options of load_state_dict().
struct LoadOptions {
  // Whether missing and unexpected names are errors.
  TORCH_ARG(bool, strict) = true;
  // Whether to leave out names whose shape differs, such as those of a head
  // with another number of classes. Otherwise these are errors.
  TORCH_ARG(bool, skip_mismatched) = false;
};

// The names that load_state_dict() did not load. Empty unless options allow
// them.
struct LoadReport {
  std::vector<std::string> missing;     // in the module, not in the dict
  std::vector<std::string> unexpected;  // in the dict, not in the module
  std::vector<std::string> mismatched;  // of another shape in the dict
};

// Copies the values of `dict` into the module's parameters and buffers, in
// place. Objects that share their memory (an optimizer, a GPipe made of the
// module) see the new values. Values are converted if they are on another
// device, or if both dtypes are floating point and differ.
//
// Throws one c10::ValueError with all problems before anything changes:
// different shapes, dtypes or layouts, values beyond the range of the module's
// dtype, missing names, unexpected names, undefined tensors, tensors on the
// meta device (without values) in only one of both, and expanded tensors in the
// module. For an unexpected name the error suggests a missing name that
// resembles it. Each list ends after 20 items. Also throws, whatever the
// options, if the module has tensors and the dict has none of their names.
// Threads: may be called from any thread while no other thread uses the module
// or changes the dict's tensors.
LoadReport load_state_dict(torch::nn::Module& module, const StateDict& dict,
                           const LoadOptions& options = {});

// Does the same for a module with the tensors `own`, which share the module's
// memory. Sparse (COO) and quantized tensors, whose values are not all in that
// memory, are an error.
LoadReport load_state_dict(const StateDict& own, const StateDict& dict,
                           const LoadOptions& options = {});

// Returns or throws what load_state_dict() does for a module with the tensors
// `own`. Changes nothing. Tensors of `own` may be on the meta device.
// Thread-safe.
LoadReport check_state_dict(const StateDict& own, const StateDict& dict,
                            const LoadOptions& options = {});

namespace internal {

// Returns the values that `tensor` has in memory: of a sparse one those that it
// has. Thread-safe.
at::Tensor elements_of(const at::Tensor& tensor);

// Returns whether dtype `to` may have a smaller range than `from`.
bool may_narrow(at::ScalarType from, at::ScalarType to);

// Returns a floating-point tensor in another floating-point dtype. Throws
// c10::ValueError with the name if finite values are beyond the range of
// `dtype`, and so would become infinite, NaN or another number. Thread-safe.
at::Tensor convert_in_range(const std::string& name, const at::Tensor& tensor,
                            at::ScalarType dtype);

}  // namespace internal

}  // namespace gpipe
