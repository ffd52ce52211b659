// A module's parameters and buffers by name: taken out, and put back in.
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

// Names and tensors in order. insert() of a name that is there already, and
// operator[] with one that is not, throw c10::Error; find() gives null.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// What Python's Module.state_dict() gives, in its order: a module's own
// parameters, then its own buffers, then its children's, with names such as
// "layer1.0.conv1.weight". What is registered but undefined (a bias that is
// switched off) is left out; what is registered twice is there twice.
//
// The tensors are detached and share the module's memory: they change with it.
// clone() those that should not.
//
// Threads: any, while no other one changes the module.
StateDict state_dict(const torch::nn::Module& module);

// How load_state_dict() takes names that do not match.
struct LoadOptions {
  // Whether missing and unexpected names are errors. Wrong shapes always are.
  TORCH_ARG(bool, strict) = true;
};

// What load_state_dict() left alone; with `strict` always nothing.
struct LoadReport {
  std::vector<std::string> missing;     // in the module, not in the dict
  std::vector<std::string> unexpected;  // in the dict, not in the module
};

// Copies the values of `dict` into the module's parameters and buffers, in
// place: whoever shares their memory (an optimizer, a GPipe made of the module)
// sees them. They may come from another device, or, if both are floating point,
// from another dtype, and are converted then.
//
// Errors: one c10::ValueError for all that is wrong, before anything is
// changed: shapes and dtypes that differ, missing names, unexpected ones (with
// the missing name that each resembles, if there is one), undefined tensors and
// tensors without values (on the meta device). A list ends after 20.
// Threads: any, while no other one uses the module or the dict's tensors.
LoadReport load_state_dict(torch::nn::Module& module, const StateDict& dict,
                           const LoadOptions& options = {});

}  // namespace gpipe
